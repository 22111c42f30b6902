"""What a comparison says in sentences: who was faster, why it may be luck, what to try next."""
