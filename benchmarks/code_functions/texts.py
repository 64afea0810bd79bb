"""Functions on texts and dictionaries: a one-line specification each, and its tests below."""


def is_palindrome(text):
    """Return whether a text reads the same backwards."""
    for index in range(len(text) // 2):
        if text[index] != text[len(text) - 1 - index]:
            return False
    return True


assert [is_palindrome(t) for t in ("", "a", "aba", "abba", "ab", "abca", "abab")] == [
    *(True, True, True, True, False, False, False),
]


def count_vowels(text):
    """Return how many letters of a text in lower case are a, e, i, o or u."""
    count = 0
    for letter in text:
        if letter in "aeiou":
            count += 1
    return count


assert [count_vowels("banana"), count_vowels("xyz"), count_vowels(""), count_vowels("aeiou")] == [3, 0, 0, 5]


def initials(name):
    """Return the first letters of all words of a name, in upper case."""
    return "".join([word[0].upper() for word in name.split()])


assert [initials("ada lovelace"), initials("x"), initials(""), initials("Alan M Turing")] == [
    "AL",
    "X",
    "",
    "AMT",
]


def longest_word(text):
    """Return the longest word of a text, the first one if several are, or an empty text."""
    best = ""
    for word in text.split():
        if len(word) > len(best):
            best = word
    return best


assert [longest_word("a bbb cc"), longest_word("aa bb"), longest_word(""), longest_word("one three")] == [
    *("bbb", "aa", "", "three"),
]


def caesar(text, shift=3):
    """Return a text of small letters, each moved shift places on in the alphabet, with a after z."""
    moved = ""
    for letter in text:
        moved += chr((ord(letter) - 97 + shift) % 26 + 97)
    return moved


assert [caesar("abc"), caesar("xyz"), caesar(""), caesar("az", 1), caesar("b", -1)] == [
    "def",
    "abc",
    "",
    "ba",
    "a",
]


def run_lengths(text):
    """Return each run of equal characters as the character and its length: 'aab' gives 'a2b1'."""
    result = ""
    count = 0
    for index in range(len(text)):
        count += 1
        if index + 1 == len(text) or text[index + 1] != text[index]:
            result += text[index] + str(count)
            count = 0
    return result


assert [run_lengths("aab"), run_lengths(""), run_lengths("abc"), run_lengths("zzz")] == [
    "a2b1",
    "",
    "a1b1c1",
    "z3",
]


def shortened(text, length=10):
    """Return a text, cut to length characters, the last three of which are dots, if it is longer."""
    if len(text) <= length:
        return text
    return text[: length - 3] + "..."


assert [shortened("short"), shortened("0123456789"), shortened("0123456789a")] == [
    *("short", "0123456789", "0123456..."),
]
assert shortened("abcdef", 5) == "ab..."


def title(text):
    """Return a text with the first letter of each word in upper case and single spaces."""
    return " ".join([word[0].upper() + word[1:] for word in text.split()])


assert [title("ab cd"), title(""), title("x"), title("a  bC")] == ["Ab Cd", "", "X", "A BC"]


def count_words(text, at_least=1):
    """Return how many words of a text have at_least letters or more."""
    count = 0
    for word in text.split():
        if len(word) >= at_least:
            count += 1
    return count


assert [count_words("a bb ccc"), count_words("a bb ccc", 2), count_words("a", 2), count_words("")] == [
    3,
    2,
    0,
    0,
]


def without_spaces(text):
    """Return a text without its spaces."""
    kept = ""
    for letter in text:
        if letter != " ":
            kept += letter
    return kept


assert [without_spaces("a b  c"), without_spaces(""), without_spaces(" x ")] == ["abc", "", "x"]


def common_prefix(first, second):
    """Return the longest text with which both texts begin."""
    length = 0
    while length < len(first) and length < len(second) and first[length] == second[length]:
        length += 1
    return first[:length]


assert [common_prefix("abcd", "abxy"), common_prefix("a", "b"), common_prefix("ab", "abc")] == [
    "ab",
    "",
    "ab",
]
assert [common_prefix("abc", "ab"), common_prefix("", "x")] == ["ab", ""]


def is_anagram(first, second):
    """Return whether two texts have the same letters, each as often."""
    return sorted(first) == sorted(second)


assert [
    is_anagram("listen", "silent"),
    is_anagram("aab", "abb"),
    is_anagram("", ""),
    is_anagram("a", "aa"),
] == [
    *(True, False, True, False),
]


def letter_counts(text):
    """Return a dictionary of how often each character occurs."""
    counts = {}
    for letter in text:
        counts[letter] = counts.get(letter, 0) + 1
    return counts


assert [letter_counts("aba"), letter_counts(""), letter_counts("xx")] == [{"a": 2, "b": 1}, {}, {"x": 2}]


def inverted(mapping):
    """Return a dictionary from the values to the keys; the values are all different."""
    return {value: key for key, value in mapping.items()}


assert [inverted({"a": 1, "b": 2}), inverted({})] == [{1: "a", 2: "b"}, {}]


def most_common(items):
    """Return the item that occurs most often, the first one if several do."""
    best = items[0]
    for item in items:
        if items.count(item) > items.count(best):
            best = item
    return best


assert [most_common([1, 2, 2]), most_common([3]), most_common([1, 2]), most_common("abcb")] == [2, 3, 1, "b"]


def best_student(points):
    """Return the name with the most points in a dictionary of at least one, the first one if several have."""
    best = None
    for name in points:
        if best is None or points[name] > points[best]:
            best = name
    return best


assert [best_student({"ann": 3, "bob": 5}), best_student({"ann": 4, "bob": 4})] == ["bob", "ann"]
assert best_student({"eve": -1}) == "eve"


def added(first, second):
    """Return a dictionary of the sums of two dictionaries of numbers; a missing number counts as 0."""
    result = dict(first)
    for key in second:
        result[key] = result.get(key, 0) + second[key]
    return result


assert [added({"a": 1}, {"a": 2, "b": 3}), added({}, {}), added({"x": 1}, {})] == [
    {"a": 3, "b": 3},
    {},
    {"x": 1},
]


def brackets_match(text):
    """Return whether every opening round bracket is closed later, and none is closed too early."""
    depth = 0
    for letter in text:
        if letter == "(":
            depth += 1
        if letter == ")":
            depth -= 1
        if depth < 0:
            return False
    return depth == 0


assert [brackets_match(t) for t in ("", "()", "(()())", "(", ")(", "())", "a(b)c")] == [
    *(True, True, True, False, False, False, True),
]


def padded(text, width=5, fill="0"):
    """Return a text with fill put before it until it has width characters."""
    while len(text) < width:
        text = fill + text
    return text


assert [padded("42"), padded("12345"), padded("123456"), padded("", 2, "x")] == [
    "00042",
    "12345",
    "123456",
    "xx",
]


def replaced(text, old, new):
    """Return a text with every character old replaced by new."""
    result = ""
    for letter in text:
        if letter == old:
            result += new
        else:
            result += letter
    return result


assert [replaced("abca", "a", "x"), replaced("", "a", "b"), replaced("abc", "z", "y")] == ["xbcx", "", "abc"]


def every_other(text, start=0):
    """Return every second character of a text, beginning with the one at start."""
    return text[start::2]


assert [every_other("abcdef"), every_other("abcdef", 1), every_other(""), every_other("abc")] == [
    *("ace", "bdf", "", "ac"),
]


def shared_letters(first, second):
    """Return how many different characters occur in both texts."""
    return len(set(first) & set(second))


assert [shared_letters("abc", "bcd"), shared_letters("", "a"), shared_letters("aab", "aaa")] == [2, 0, 1]
assert shared_letters("xyz", "abc") == 0


def first_repeated(text):
    """Return the first character that has occurred before, or an empty text."""
    seen = set()
    for letter in text:
        if letter in seen:
            return letter
        seen.add(letter)
    return ""


assert [first_repeated("abca"), first_repeated("abba"), first_repeated("abc"), first_repeated("")] == [
    "a",
    "b",
    "",
    "",
]


def from_binary(digits):
    """Return the number that a text of binary digits means; an empty text means 0."""
    number = 0
    for digit in digits:
        number = number * 2 + int(digit)
    return number


assert [from_binary("0"), from_binary("1"), from_binary("101"), from_binary("1101"), from_binary("")] == [
    0,
    1,
    5,
    13,
    0,
]
