"""The generator matrix and its inverses over GF(2^8) (da/SPEC.md, *Code*).

The field is 0x11d, generator 2. The code is the one of reedsolo with ``fcr=0``: column j of the parity part is the
parity that reedsolo gives the unit vector e_j, so our shards are byte for byte reedsolo's, column by column, which
tests and the kernel's self-test compare. It is computed here, since reedsolo keeps its tables in globals that each new
codec rewrites: two threads then get wrong parity now and then. Matrix id 1 names this matrix. Invariant: any k of the
n rows are invertible, and inversion says so when they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from da.core.errors import InvalidScheme, SingularMatrix
from da.core.scheme import MAX_SEATS

FIELD_POLYNOMIAL = 0x11D
"""x^8 + x^4 + x^3 + x^2 + 1, that of reedsolo and ISA-L."""

Rows = tuple[bytes, ...]
"""A matrix: one byte string a row."""


@cache
def compute_parity_rows(num_data: int, num_shards: int) -> Rows:
    """Return the n - k rows that make parity out of k data pieces; row r has k coefficients.

    Raises:
        InvalidScheme: not 1 <= k <= n <= 64.
    """
    if not 1 <= num_data <= num_shards <= MAX_SEATS:
        raise InvalidScheme(f"k {num_data}, n {num_shards}; expected 1 <= k <= n <= {MAX_SEATS}")
    num_parity = num_shards - num_data
    if num_parity == 0:
        return ()
    divisor = _compute_code_polynomial(num_parity)
    columns = [_compute_next_remainder(bytes(num_parity), divisor, 1)]
    while len(columns) < num_data:
        columns.append(_compute_next_remainder(columns[-1], divisor, 0))
    columns.reverse()
    return tuple(bytes(column[row] for column in columns) for row in range(num_parity))


@cache
def compute_generator_rows(num_data: int, num_shards: int) -> Rows:
    """Return all n rows: the identity, then the parity rows."""
    identity = tuple(_compute_unit(num_data, j) for j in range(num_data))
    return identity + compute_parity_rows(num_data, num_shards)


@cache
def compute_recovery_rows(num_data: int, num_shards: int, present: tuple[int, ...], wanted: tuple[int, ...]) -> Rows:
    """Return the rows that make the ``wanted`` shards out of the k ``present`` ones, in that order.

    Raises:
        InvalidScheme: not k different shards of 0..n-1.
        SingularMatrix: these shards do not determine the data.
    """
    if len(set(present)) != num_data or len(present) != num_data or not set(present) <= set(range(num_shards)):
        raise InvalidScheme(f"shards {present}, expected {num_data} different ones of {num_shards}")
    generator = compute_generator_rows(num_data, num_shards)
    inverse = invert([generator[index] for index in present])
    return tuple(multiply_row(generator[index], inverse) for index in wanted)


def invert(rows: Sequence[bytes]) -> Rows:
    """Return the inverse of a square matrix by Gauss-Jordan elimination.

    Raises:
        SingularMatrix: there is none.
    """
    size = len(rows)
    tables = multiplication_tables()
    work = [row + _compute_unit(size, index) for index, row in enumerate(rows)]
    for column in range(size):
        pivot = next((index for index in range(column, size) if work[index][column]), None)
        if pivot is None:
            raise SingularMatrix(f"no pivot in column {column} of a {size} x {size} matrix")
        work[column], work[pivot] = work[pivot], work[column]
        work[column] = work[column].translate(tables[_compute_inverse(work[column][column])])
        for index in range(size):
            factor = work[index][column]
            if index != column and factor:
                work[index] = _add(work[index], work[column].translate(tables[factor]))
    return tuple(row[size:] for row in work)


def multiply_row(row: bytes, rows: Sequence[bytes]) -> bytes:
    """Return the row vector times the matrix ``rows``."""
    tables = multiplication_tables()
    total = bytes(len(rows[0]))
    for factor, other in zip(row, rows, strict=True):
        if factor:
            total = _add(total, other.translate(tables[factor]))
    return total


@cache
def multiplication_tables() -> Rows:
    """Return 256 rows of 256 products: ``tables[a][b]`` is a times b, and ``data.translate(tables[a])`` scales."""
    exponents, logarithms = _compute_logarithms()
    nonzero = range(1, 256)
    products = (bytes((0, *(exponents[(logarithms[a] + logarithms[b]) % 255] for b in nonzero))) for a in nonzero)
    return (bytes(256), *products)


@cache
def _compute_logarithms() -> tuple[tuple[int, ...], tuple[int, ...]]:
    exponents = [1]
    while len(exponents) < 255:
        doubled = exponents[-1] << 1
        exponents.append(doubled ^ FIELD_POLYNOMIAL if doubled & 0x100 else doubled)
    logarithms = [0] * 256
    for power, value in enumerate(exponents):
        logarithms[value] = power
    return tuple(exponents), tuple(logarithms)


def _compute_inverse(value: int) -> int:
    exponents, logarithms = _compute_logarithms()
    return exponents[-logarithms[value] % 255]


def _compute_code_polynomial(degree: int) -> bytes:
    """Return the coefficients below the leading 1 of (x - 2^0)(x - 2^1)...(x - 2^(degree - 1)), highest first."""
    tables, (exponents, _) = multiplication_tables(), _compute_logarithms()
    product = b"\1"
    for power in range(degree):
        product = _add(product + b"\0", b"\0" + product.translate(tables[exponents[power]]))
    return product[1:]


def _compute_next_remainder(remainder: bytes, divisor: bytes, data: int) -> bytes:
    """Return the remainder after one more byte of ``data``: that of x * remainder + data * x^degree."""
    carry = remainder[0] ^ data
    return _add(remainder[1:] + b"\0", divisor.translate(multiplication_tables()[carry]))


def _compute_unit(size: int, index: int) -> bytes:
    return bytes(1 if position == index else 0 for position in range(size))


def _add(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")
