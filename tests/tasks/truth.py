"""The slow truth: the papers' definitions on lists of strings, one sequence at a time, all places at once."""


def index(tokens):
    """Index(σ): an integer i whose i-th token to the left is a letter becomes that letter; others stay."""
    result = []
    for j, token in enumerate(tokens):
        if token.isdigit() and 0 <= j - int(token) and tokens[j - int(token)].isalpha():
            token = tokens[j - int(token)]
        result.append(token)
    return result


def retrieval(tokens):
    """Retrieval(σ): a letter–letter pair becomes the token k ≤ j that starts with its right letter.

    Where that token does not exist or is not the same wherever it occurs, the place stays as it is.
    """
    result = []
    for j, token in enumerate(tokens):
        if token.isalpha():
            named = {other for other in tokens[: j + 1] if other[0] == token[1]}
            if len(named) == 1:
                token = named.pop()
        result.append(token)
    return result


def composed(basic, tokens, hops):
    """The last token of basicʰ(σ); the Reflexive steps after it change nothing."""
    for _ in range(hops):
        tokens = basic(tokens)
    return tokens[-1]


def number_path(tokens):
    """Places from the last token, jump by jump, to a letter."""
    path = [len(tokens) - 1]
    while tokens[path[-1]].isdigit():
        path.append(path[-1] - int(tokens[path[-1]]))
    return path


def letter_path(tokens):
    """Places from the last token, first letter by first letter, to a letter–integer pair."""
    path = [len(tokens) - 1]
    while tokens[path[-1]].isalpha():
        (place,) = [k for k, token in enumerate(tokens) if token[0] == tokens[path[-1]][1]]
        assert place < path[-1], "the path must lead to earlier places"
        path.append(place)
    return path


def stray_letters(tokens):
    """Letters that tokens on the letter path share with tokens off it."""
    path = letter_path(tokens)
    on = {letter for place in path for letter in tokens[place] if letter.isalpha()}
    off = {letter for place, token in enumerate(tokens) if place not in path for letter in token if letter.isalpha()}
    return on & off


def mixed_path(tokens):
    """Places from the last token, by what each token ends with, to one that ends with a capital."""
    path = [len(tokens) - 1]
    while not tokens[path[-1]][-1].isupper():
        name, rest = tokens[path[-1]][0], tokens[path[-1]][1:]
        assert name.islower()
        if rest.isdigit():
            place = path[-1] - int(rest)
            assert place >= 0, "the path must stay inside"
        else:
            (place,) = [k for k, token in enumerate(tokens) if token[0] == rest]
        assert place < path[-1], "the path must lead to earlier places"
        path.append(place)
    return path
