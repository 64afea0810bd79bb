"""Functions on lists: a one-line specification each, and its tests below."""


def total(numbers):
    """Return the sum of a list of numbers, which is 0 for an empty list."""
    result = 0
    for number in numbers:
        result += number
    return result


assert [total([]), total([4]), total([1, 2, 3]), total([-1, 1])] == [0, 4, 6, 0]


def largest(numbers):
    """Return the largest of a list of at least one number."""
    best = numbers[0]
    for number in numbers[1:]:
        if number > best:
            best = number
    return best


assert [largest([3]), largest([1, 5, 2]), largest([9, 1]), largest([-4, -2, -7])] == [3, 5, 9, -2]


def index_of(items, wanted):
    """Return the index of the first item that equals wanted, or -1."""
    for index in range(len(items)):
        if items[index] == wanted:
            return index
    return -1


assert [index_of([5, 6, 7], 5), index_of([5, 6, 7], 7), index_of([1], 2), index_of([], 1)] == [0, 2, -1, -1]
assert index_of([3, 4, 4], 4) == 1


def last_index_of(items, wanted):
    """Return the index of the last item that equals wanted, or -1."""
    found = -1
    for index in range(len(items)):
        if items[index] == wanted:
            found = index
    return found


assert [last_index_of([4, 5, 4], 4), last_index_of([4, 5], 5), last_index_of([1], 2)] == [2, 1, -1]
assert last_index_of([7, 8], 7) == 0


def count_of(items, wanted):
    """Return how many items equal wanted."""
    count = 0
    for item in items:
        if item == wanted:
            count += 1
    return count


assert [count_of([1, 2, 1], 1), count_of([1, 2], 3), count_of([], 1), count_of([5, 5], 5)] == [2, 0, 0, 2]


def mean(numbers, default=0):
    """Return the mean of a list of numbers, or default if it is empty."""
    if len(numbers) == 0:
        return default
    return sum(numbers) / len(numbers)


assert [mean([2, 4]), mean([5]), mean([]), mean([], 7), mean([1, 2, 6])] == [3, 5, 0, 7, 3]


def median(numbers):
    """Return the middle number in order, or the mean of the two in the middle."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


assert [median([3, 1, 2]), median([4, 1, 3, 2]), median([9]), median([1, 5])] == [2, 2.5, 9, 3]
assert median([10, 20, 30, 40, 50]) == 30


def is_sorted(numbers):
    """Return whether no number is less than the one before it."""
    for index in range(1, len(numbers)):
        if numbers[index] < numbers[index - 1]:
            return False
    return True


assert [is_sorted([]), is_sorted([1]), is_sorted([1, 1, 2]), is_sorted([2, 1])] == [True, True, True, False]
assert [is_sorted([1, 3, 2]), is_sorted([3, 1, 2]), is_sorted([1, 2, 3])] == [False, False, True]


def running_sums(numbers):
    """Return a list whose item i is the sum of the first i + 1 numbers."""
    sums = []
    current = 0
    for number in numbers:
        current += number
        sums.append(current)
    return sums


assert [running_sums([]), running_sums([3]), running_sums([1, 2, 3])] == [[], [3], [1, 3, 6]]


def differences(numbers):
    """Return a list of each number minus the one before it."""
    result = []
    for index in range(1, len(numbers)):
        result.append(numbers[index] - numbers[index - 1])
    return result


assert [differences([]), differences([4]), differences([1, 4, 9]), differences([5, 3])] == [
    [],
    [],
    [3, 5],
    [-2],
]


def without_duplicates(items):
    """Return the items in order, each only where it first appears."""
    kept = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept


assert [without_duplicates([1, 2, 1, 3, 2]), without_duplicates([]), without_duplicates([4, 4])] == [
    *([1, 2, 3], [], [4]),
]


def backwards(items):
    """Return the items in the opposite order."""
    result = []
    for index in range(len(items) - 1, -1, -1):
        result.append(items[index])
    return result


assert [backwards([1, 2, 3]), backwards([]), backwards([5]), backwards([1, 2])] == [
    [3, 2, 1],
    [],
    [5],
    [2, 1],
]


def chunks(items, size=2):
    """Return the items in consecutive lists of size items; the last may be shorter."""
    parts = []
    for start in range(0, len(items), size):
        parts.append(items[start : start + size])
    return parts


assert [chunks([1, 2, 3, 4]), chunks([1, 2, 3]), chunks([])] == [[[1, 2], [3, 4]], [[1, 2], [3]], []]
assert chunks([1, 2, 3, 4, 5], 3) == [[1, 2, 3], [4, 5]]


def rotated(items, steps=1):
    """Return the items with the first steps items moved to the end; there are at least steps items."""
    return items[steps:] + items[:steps]


assert [rotated([1, 2, 3]), rotated([1, 2, 3], 2), rotated([1, 2], 0), rotated([4])] == [
    *([2, 3, 1], [3, 1, 2], [1, 2], [4]),
]


def flattened(lists):
    """Return the items of all lists in one list."""
    result = []
    for one in lists:
        for item in one:
            result.append(item)
    return result


assert [flattened([[1], [2, 3]]), flattened([]), flattened([[], [4]])] == [[1, 2, 3], [], [4]]


def merged(first, second):
    """Return the numbers of two sorted lists in one sorted list."""
    result = []
    i, j = 0, 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            result.append(first[i])
            i += 1
        else:
            result.append(second[j])
            j += 1
    return result + first[i:] + second[j:]


assert [merged([1, 4], [2, 3]), merged([], [1]), merged([1], []), merged([1, 1], [1])] == [
    *([1, 2, 3, 4], [1], [1], [1, 1, 1]),
]


def binary_search(numbers, wanted):
    """Return the index of wanted in a sorted list of different numbers, or -1."""
    low, high = 0, len(numbers) - 1
    while low <= high:
        middle = (low + high) // 2
        if numbers[middle] == wanted:
            return middle
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return -1


assert [binary_search([1, 3, 5, 7], n) for n in (1, 3, 5, 7, 0, 4, 8)] == [0, 1, 2, 3, -1, -1, -1]
assert [binary_search([], 1), binary_search([2], 2)] == [-1, 0]


def second_largest(numbers):
    """Return the second largest of a list of at least two different numbers."""
    ordered = sorted(numbers)
    return ordered[-2]


assert [second_largest([1, 2]), second_largest([5, 9, 7]), second_largest([3, 1, 2, 4])] == [1, 7, 3]


def positions(items, wanted):
    """Return the indexes of all items that equal wanted."""
    return [index for index in range(len(items)) if items[index] == wanted]


assert [positions([1, 2, 1], 1), positions([1], 2), positions([], 1), positions([7, 7], 7)] == [
    *([0, 2], [], [], [0, 1]),
]


def evens(numbers):
    """Return the even numbers of a list."""
    return [number for number in numbers if number % 2 == 0]


assert [evens([1, 2, 3, 4]), evens([]), evens([1, 3]), evens([0, -2])] == [[2, 4], [], [], [0, -2]]


def longest_run(items):
    """Return the length of the longest run of equal neighbours, which is 0 for an empty list."""
    best, current = 0, 0
    for index in range(len(items)):
        if index > 0 and items[index] == items[index - 1]:
            current += 1
        else:
            current = 1
        best = max(best, current)
    return best


assert [longest_run([]), longest_run([1]), longest_run([1, 1, 2]), longest_run([1, 2, 2, 2])] == [0, 1, 2, 3]
assert [longest_run([1, 2, 1]), longest_run([3, 3, 3])] == [1, 3]


def dot(first, second):
    """Return the sum of the products of the numbers at the same place in two lists of one length."""
    result = 0
    for index in range(len(first)):
        result += first[index] * second[index]
    return result


assert [dot([1, 2], [3, 4]), dot([], []), dot([5], [2]), dot([1, 0, 2], [7, 8, 9])] == [11, 0, 10, 25]


def column(rows, index=0):
    """Return the item at index of every row."""
    return [row[index] for row in rows]


assert [column([[1, 2], [3, 4]]), column([[1, 2], [3, 4]], 1), column([])] == [[1, 3], [2, 4], []]


def transposed(rows):
    """Return the columns of a rectangle of at least one row as lists."""
    return [[row[index] for row in rows] for index in range(len(rows[0]))]


assert [transposed([[1, 2], [3, 4]]), transposed([[1, 2, 3]])] == [[[1, 3], [2, 4]], [[1], [2], [3]]]


def pairs_with_sum(numbers, wanted):
    """Return how many pairs of numbers at different places add up to wanted."""
    count = 0
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == wanted:
                count += 1
    return count


assert [pairs_with_sum([1, 2, 3], 4), pairs_with_sum([2, 2, 2], 4), pairs_with_sum([2], 4)] == [1, 3, 0]
assert pairs_with_sum([1, 3, 2, 2], 4) == 2


def best_sum(numbers):
    """Return the largest sum of neighbours in a list, which is 0 if no sum is positive."""
    best, current = 0, 0
    for number in numbers:
        current = max(0, current + number)
        best = max(best, current)
    return best


assert [best_sum([]), best_sum([-1]), best_sum([1, -2, 3, 4]), best_sum([5, -1, 2])] == [0, 0, 7, 6]


def share_above(numbers, limit):
    """Return the share of numbers that are greater than limit, which is 0 for an empty list."""
    if not numbers:
        return 0
    above = [number for number in numbers if number > limit]
    return len(above) / len(numbers)


assert [share_above([], 1), share_above([1, 2], 1), share_above([1, 2, 3, 4], 0)] == [0, 0.5, 1]
assert share_above([5, 5], 5) == 0


def take_while_positive(numbers):
    """Return the numbers before the first that is not positive."""
    taken = []
    for number in numbers:
        if number <= 0:
            break
        taken.append(number)
    return taken


assert [take_while_positive([1, 2, 0, 3]), take_while_positive([-1, 2]), take_while_positive([4, 5])] == [
    *([1, 2], [], [4, 5]),
]
assert take_while_positive([]) == []
