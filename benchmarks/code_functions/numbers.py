"""Functions on numbers: a one-line specification each, and its tests below."""


def clamp(number, low=0, high=100):
    """Return number, or low if it is smaller, or high if it is greater."""
    if number < low:
        return low
    if number > high:
        return high
    return number


assert [clamp(5), clamp(-1), clamp(101), clamp(0), clamp(100), clamp(99)] == [5, 0, 100, 0, 100, 99]
assert [clamp(3, 4, 6), clamp(7, 4, 6), clamp(5, 4, 6), clamp(-5, -3)] == [4, 6, 5, -3]


def sign(number):
    """Return 1 for a positive number, -1 for a negative one, and 0 for zero."""
    if number > 0:
        return 1
    if number < 0:
        return -1
    return 0


assert [sign(7), sign(1), sign(0), sign(-1), sign(-9), sign(0.5)] == [1, 1, 0, -1, -1, 1]


def factorial(n):
    """Return the product of the whole numbers from 1 to n, which is 1 for n = 0."""
    product = 1
    for factor in range(2, n + 1):
        product *= factor
    return product


assert [factorial(n) for n in range(6)] == [1, 1, 2, 6, 24, 120]


def fibonacci(n):
    """Return Fibonacci number n, where number 0 is 0 and number 1 is 1."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


assert [fibonacci(n) for n in range(9)] == [0, 1, 1, 2, 3, 5, 8, 13, 21]


def greatest_divisor(a, b):
    """Return the greatest common divisor of two whole numbers of 1 or more."""
    while b > 0:
        a, b = b, a % b
    return a


assert [greatest_divisor(12, 18), greatest_divisor(7, 5), greatest_divisor(9, 9)] == [6, 1, 9]
assert [greatest_divisor(1, 8), greatest_divisor(100, 75), greatest_divisor(6, 3)] == [1, 25, 3]


def is_prime(n):
    """Return whether n is a prime number."""
    if n < 2:
        return False
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 1
    return True


assert [n for n in range(-1, 30) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
assert [is_prime(49), is_prime(97), is_prime(121), is_prime(2)] == [False, True, False, True]


def digit_sum(n):
    """Return the sum of the decimal digits of a whole number of 0 or more."""
    total = 0
    while n > 0:
        total += n % 10
        n //= 10
    return total


assert [digit_sum(0), digit_sum(7), digit_sum(10), digit_sum(199), digit_sum(1234)] == [0, 7, 1, 19, 10]


def count_digits(n):
    """Return how many decimal digits a whole number of 0 or more has; 0 has one."""
    count = 1
    while n >= 10:
        n //= 10
        count += 1
    return count


assert [count_digits(n) for n in (0, 9, 10, 99, 100, 1000)] == [1, 1, 2, 2, 3, 4]


def is_leap_year(year):
    """Return whether a year is a leap year: divisible by 4, but by 100 only if also by 400."""
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


assert [is_leap_year(y) for y in (2000, 1900, 2024, 2023, 2100, 1600, 4)] == [
    *(True, False, True, False, False, True, True),
]


def days_in_month(month, leap=False):
    """Return how many days a month from 1 to 12 has; February has 29 if leap is true."""
    if month == 2:
        return 29 if leap else 28
    if month in (4, 6, 9, 11):
        return 30
    return 31


assert [days_in_month(m) for m in range(1, 13)] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
assert [days_in_month(2, True), days_in_month(2, False), days_in_month(1, True)] == [29, 28, 31]


def power(base, exponent):
    """Return base to the power of a whole exponent of 0 or more."""
    result = 1
    for _ in range(exponent):
        result *= base
    return result


assert [power(2, 0), power(2, 1), power(2, 5), power(3, 3), power(-2, 3)] == [1, 2, 32, 27, -8]


def collatz_steps(n):
    """Return how often n must be halved if even, or tripled plus 1 if odd, until it is 1."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


assert [collatz_steps(n) for n in (1, 2, 3, 4, 6, 7)] == [0, 1, 7, 2, 8, 16]


def triangle_kind(a, b, c):
    """Return 'equilateral', 'isosceles' or 'scalene' by how many of three sides are equal."""
    if a == b and b == c:
        return "equilateral"
    if a == b or b == c or a == c:
        return "isosceles"
    return "scalene"


assert [triangle_kind(2, 2, 2), triangle_kind(3, 4, 5)] == ["equilateral", "scalene"]
assert {triangle_kind(2, 2, 3), triangle_kind(3, 2, 2), triangle_kind(2, 3, 2)} == {"isosceles"}


def round_up(number, step=10):
    """Return the smallest multiple of step that is not less than a whole number."""
    rest = number % step
    if rest == 0:
        return number
    return number + step - rest


assert [round_up(0), round_up(1), round_up(10), round_up(11), round_up(19)] == [0, 10, 10, 20, 20]
assert [round_up(7, 4), round_up(8, 4), round_up(-3)] == [8, 8, 0]


def seconds_of(hours, minutes=0, seconds=0):
    """Return a time of hours, minutes and seconds in seconds."""
    return hours * 3600 + minutes * 60 + seconds


assert [seconds_of(1), seconds_of(0, 1), seconds_of(0, 0, 1), seconds_of(2, 3, 4)] == [3600, 60, 1, 7384]


def overlap(first_start, first_end, second_start, second_end):
    """Return the length of the overlap of two intervals, which is 0 if they do not overlap."""
    start = max(first_start, second_start)
    end = min(first_end, second_end)
    if start > end:
        return 0
    return end - start


assert [overlap(0, 5, 3, 8), overlap(0, 2, 3, 4), overlap(0, 9, 2, 4), overlap(5, 7, 1, 6)] == [2, 0, 2, 1]
assert overlap(0, 2, 2, 4) == 0


def grade(points):
    """Return 'A' from 90 points, 'B' from 80, 'C' from 70, and 'F' below."""
    if points >= 90:
        return "A"
    if points >= 80:
        return "B"
    if points >= 70:
        return "C"
    return "F"


assert "".join(grade(p) for p in (100, 90, 89, 80, 79, 70, 69, 0)) == "AABBCCFF"


def to_binary(n):
    """Return the binary digits of a whole number of 0 or more as text, without leading zeros."""
    if n == 0:
        return "0"
    digits = ""
    while n > 0:
        digits = str(n % 2) + digits
        n //= 2
    return digits


assert [to_binary(n) for n in (0, 1, 2, 5, 8, 13)] == ["0", "1", "10", "101", "1000", "1101"]


def price_with_discount(price, count, needed=3, percent=10):
    """Return the price of count items, less percent per cent if there are at least needed items."""
    total = price * count
    if count >= needed:
        return total - total * percent / 100
    return total


assert [price_with_discount(10, 1), price_with_discount(10, 2), price_with_discount(10, 3)] == [10, 20, 27]
assert [price_with_discount(10, 4), price_with_discount(5, 2, 2, 50)] == [36, 5]


def is_perfect(n):
    """Return whether a whole number of 1 or more equals the sum of its divisors below itself."""
    total = 0
    for divisor in range(1, n):
        if n % divisor == 0:
            total += divisor
    return total == n


assert [n for n in range(1, 100) if is_perfect(n)] == [6, 28]


def sum_to(n, start=1):
    """Return the sum of the whole numbers from start to n, both included."""
    total = 0
    for number in range(start, n + 1):
        total += number
    return total


assert [sum_to(0), sum_to(1), sum_to(4), sum_to(5, 4), sum_to(3, 0), sum_to(2, 3)] == [0, 1, 10, 9, 6, 0]


def whole_root(n):
    """Return the greatest whole number whose square is not more than n, which is 0 or more."""
    root = 0
    while (root + 1) * (root + 1) <= n:
        root += 1
    return root


assert [whole_root(n) for n in (0, 1, 3, 4, 8, 9, 24, 25)] == [0, 1, 1, 2, 2, 3, 4, 5]
