"""The same job on adaptcl and on what people use today, each in a process of its own."""
