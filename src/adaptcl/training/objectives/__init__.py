"""What a model is trained for, and by what it is judged."""
