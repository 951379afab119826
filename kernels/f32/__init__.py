"""Products of f32. They are not built by default: most layers of networks multiply numbers of 16 bits or fewer."""
