"""An ordinary Flower app whose strategy is AdaptCL."""
