def page(stored): return ""
