"""ruda_runtime"""
