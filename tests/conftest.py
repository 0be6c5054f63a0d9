"""The order of the tests."""


def pytest_collection_modifyitems(items):
    """The book's files come first: they take longest, and short ones at the end let all workers end together."""
    items.sort(key=lambda item: item.get_closest_marker("book") is None)
