// The place of the models in a page: see _ext/possym_model.py.
