"""Text as bytes."""


def utf8(text: str) -> bytes:
    """The text in UTF-8. Raises ValueError for half of a UTF-16 pair, which JSON can smuggle into a string."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start} of the text is {text[error.start]!r}, half of a UTF-16 pair and no character; "
            "remove it"
        ) from None
