"""What Python users call: the functions of `adaptcl`, and results that show themselves.

It stands above runs and reports, as the command line does.
"""
