"""The curve of precompiles 6 to 8: alt_bn128, also called BN254 (EIPs 196 and 197), in plain integers.

py-evm's own takes 9 ms for a multiplication and a third of a second for a pairing, far more than their gas pays for.
Here (one core): addition 0.02 ms, multiplication 1.5 ms, the check of one pairing 12 ms and of each further pair 7, so
4 to 7 Mgas/s, which is faster than the slowest loops of opcodes.  py_ecc is the tests' oracle.

    Fp2 = Fp[i]/(i^2 + 1)      Fp6 = Fp2[v]/(v^3 - xi), xi = 9 + i      Fp12 = Fp6[w]/(w^2 - v)
    E: y^2 = x^3 + 3 over Fp   E': y^2 = x^3 + 3/xi over Fp2, mapped into E(Fp12) by (x, y) -> (x w^2, y w^3)

An element of Fp2 is (a, b) for a + b i; of Fp6 six integers, of Fp12 two of Fp6.  A point is (x, y), None at infinity.
Invariant: what a function returns is reduced, 0 <= each integer < P.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

P = 21888242871839275222246405745257275088696311157297823662689037894645226208583
"""The field's prime (EIP-196)."""
ORDER = 21888242871839275222246405745257275088548364400416034343698204186575808495617
"""Of both groups, a prime (EIP-197)."""
U = 4965661367192848881
"""The curve's parameter: P and ORDER are polynomials in it (Barreto, Naehrig 2005)."""

Fp2 = tuple[int, int]
Fp6 = tuple[int, int, int, int, int, int]
Fp12 = tuple[Fp6, Fp6]
Point = tuple[int, int] | None
"""Of E."""
TwistPoint = tuple[Fp2, Fp2] | None
"""Of E'."""

_ZERO6: Fp6 = (0, 0, 0, 0, 0, 0)
_ONE: Fp12 = ((1, 0, 0, 0, 0, 0), _ZERO6)
_TWIST_B: Fp2 = (
    19485874751759354771024239261021720505790618469301721065564631296452457478373,
    266929791119991161246907387137283842545076965332900288569378510910307636690,
)
"""3 / xi."""
_LOOP_BITS = bin(6 * U + 2)[3:]
"""Of the optimal ate pairing (Vercauteren 2010), after the leading one."""


def is_on_curve(point: Point) -> bool:
    """Say whether a point lies on E; all of E has the order ORDER."""
    if point is None:
        return True
    x, y = point
    return (y * y - x * x * x - 3) % P == 0


def is_in_twist_group(point: TwistPoint) -> bool:
    """Say whether a point lies on E' and in its group of order ORDER, which is a small part of E'."""
    if point is None:
        return True
    x, y = point
    left, right = _square2(y), _mul2(_square2(x), x)
    if (left[0] - right[0] - _TWIST_B[0]) % P or (left[1] - right[1] - _TWIST_B[1]) % P:
        return False
    return _is_killed_by_order(x, y)


def add(first: Point, second: Point) -> Point:
    """Add two points of E."""
    if first is None:
        return second
    if second is None:
        return first
    (x1, y1), (x2, y2) = first, second
    if x1 != x2:
        slope = (y2 - y1) * pow(x2 - x1, -1, P) % P
    elif (y1 + y2) % P == 0:
        return None
    else:
        slope = 3 * x1 * x1 * pow(2 * y1, -1, P) % P
    x3 = (slope * slope - x1 - x2) % P
    return x3, (slope * (x1 - x3) - y1) % P


def multiply(point: Point, scalar: int) -> Point:
    """Multiply a point of E, in Jacobian coordinates: x = X / Z^2, y = Y / Z^3."""
    scalar %= ORDER
    if point is None or scalar == 0:
        return None
    x2, y2 = point
    x, y, z = x2, y2, 1
    for bit in bin(scalar)[3:]:
        yy = y * y % P
        s = 4 * x * yy % P
        m = 3 * x * x % P
        z = 2 * y * z % P
        x = (m * m - 2 * s) % P
        y = (m * (s - x) - 8 * yy * yy) % P
        if bit == "0":
            continue
        # A mixed addition.  The running multiple m is even and m + 1 < ORDER, so it is neither 1 nor ORDER - 1: the
        # two points differ in x.
        zz = z * z % P
        h = (x2 * zz - x) % P
        r = (y2 * zz * z - y) % P
        hh = h * h % P
        hhh = h * hh % P
        v = x * hh % P
        x = (r * r - hhh - 2 * v) % P
        y = (r * (v - x) - y * hhh) % P
        z = z * h % P
    inverse = pow(z, -1, P)
    square = inverse * inverse % P
    return x * square % P, y * square * inverse % P


def is_product_one(pairs: Sequence[tuple[Point, TwistPoint]]) -> bool:
    """Say whether the product of the pairings is one; the points have been checked."""
    finite = [(p, q) for p, q in pairs if p is not None and q is not None]
    if not finite:
        return True
    return _is_one_after_final_power(_run_miller_loop(finite))


# ---- The Miller loop


def _run_miller_loop(pairs: Sequence[tuple[tuple[int, int], tuple[Fp2, Fp2]]]) -> Fp12:
    """Multiply the pairs' line functions, squaring once for all of them."""
    f = _ONE
    running = [q for _, q in pairs]
    for bit in _LOOP_BITS:
        f = _square12(f)
        for index, (p, q) in enumerate(pairs):
            t = running[index]
            slope = _mul2(_scale2(_square2(t[0]), 3), _invert2((2 * t[1][0], 2 * t[1][1])))
            f = _mul_by_line(f, slope, t, p)
            t = _step(slope, t, t[0])
            if bit == "1":
                slope = _slope_between(t, q)
                f = _mul_by_line(f, slope, t, p)
                t = _step(slope, t, q[0])
            running[index] = t
    for (p, q), t in zip(pairs, running, strict=True):
        once = _frobenius_of_twist(q)
        twice = _frobenius_of_twist(once)
        negated = (twice[0], (-twice[1][0] % P, -twice[1][1] % P))
        slope = _slope_between(t, once)
        f = _mul_by_line(f, slope, t, p)
        t = _step(slope, t, once[0])
        f = _mul_by_line(f, _slope_between(t, negated), t, p)
    return f


def _slope_between(t: tuple[Fp2, Fp2], q: tuple[Fp2, Fp2]) -> Fp2:
    """Return the slope of a chord; the multiples of a point of large prime order that the loop meets differ in x."""
    (tx, ty), (qx, qy) = t, q
    return _mul2((qy[0] - ty[0], qy[1] - ty[1]), _invert2((qx[0] - tx[0], qx[1] - tx[1])))


def _step(slope: Fp2, t: tuple[Fp2, Fp2], qx: Fp2) -> tuple[Fp2, Fp2]:
    """Return the third point of a line, negated: the sum."""
    (tx, ty) = t
    square = _square2(slope)
    x = ((square[0] - tx[0] - qx[0]) % P, (square[1] - tx[1] - qx[1]) % P)
    y = _mul2(slope, (tx[0] - x[0], tx[1] - x[1]))
    return x, ((y[0] - ty[0]) % P, (y[1] - ty[1]) % P)


def _mul_by_line(f: Fp12, slope: Fp2, t: tuple[Fp2, Fp2], p: tuple[int, int]) -> Fp12:
    """Multiply by the line through ``t`` at ``p``: y_p - slope x_p w + (slope x_t - y_t) w^3."""
    (tx, ty), (px, py) = t, p
    product = _mul2(slope, tx)
    b0, b1 = -slope[0] * px % P, -slope[1] * px % P
    c0, c1 = product[0] - ty[0], product[1] - ty[1]
    low, high = f
    a0, a1, a2, a3, a4, a5 = _mul6_by_two(high, b0, b1, c0, c1)
    # times v: (x, y, z) -> (xi z, x, y)
    new_low = (
        (low[0] * py + 9 * a4 - a5) % P,
        (low[1] * py + 9 * a5 + a4) % P,
        (low[2] * py + a0) % P,
        (low[3] * py + a1) % P,
        (low[4] * py + a2) % P,
        (low[5] * py + a3) % P,
    )
    d = _mul6_by_two(low, b0, b1, c0, c1)
    new_high = (
        (high[0] * py + d[0]) % P,
        (high[1] * py + d[1]) % P,
        (high[2] * py + d[2]) % P,
        (high[3] * py + d[3]) % P,
        (high[4] * py + d[4]) % P,
        (high[5] * py + d[5]) % P,
    )
    return new_low, new_high


def _mul6_by_two(x: Fp6, b0: int, b1: int, c0: int, c1: int) -> Fp6:
    """Multiply by (b0 + b1 i) + (c0 + c1 i) v; the result is not reduced."""
    x0, x1, x2, x3, x4, x5 = x
    z0 = x4 * c0 - x5 * c1
    z1 = x4 * c1 + x5 * c0
    return (
        x0 * b0 - x1 * b1 + 9 * z0 - z1,
        x0 * b1 + x1 * b0 + 9 * z1 + z0,
        x2 * b0 - x3 * b1 + x0 * c0 - x1 * c1,
        x2 * b1 + x3 * b0 + x0 * c1 + x1 * c0,
        x4 * b0 - x5 * b1 + x2 * c0 - x3 * c1,
        x4 * b1 + x5 * b0 + x2 * c1 + x3 * c0,
    )


# ---- The final power


def _is_one_after_final_power(f: Fp12) -> bool:
    """Say whether f^((P^12 - 1) / ORDER) is one.

    The last factor is raised to 2U(6U^2 + 3U + 1), prime to ORDER, times (P^4 - P^2 + 1) / ORDER, which costs three
    powers of U (Fuentes-Castaneda, Knapp, Rodriguez-Henriquez 2011).
    """
    f = _mul12(_conjugate(f), _invert12(f))
    f = _mul12(_frobenius(f, 2), f)
    # In the cyclotomic group from here on, where the conjugate is the inverse.
    fu = _power_of_u(f)
    f2u = _square12(fu)
    f6u = _mul12(_square12(f2u), f2u)
    f6uu = _power_of_u(f6u)
    f12uuu = _power_of_u(_square12(f6uu))
    a = _mul12(_mul12(f12uuu, f6uu), f6u)
    b = _mul12(a, _conjugate(f2u))
    first = _mul12(_mul12(a, f6uu), f)
    middle = _mul12(_frobenius(b, 1), _frobenius(a, 2))
    last = _frobenius(_mul12(b, _conjugate(f)), 3)
    return _mul12(_mul12(first, middle), last) == _ONE


def _power_of_u(f: Fp12) -> Fp12:
    power = f
    for bit in bin(U)[3:]:
        power = _square12(power)
        if bit == "1":
            power = _mul12(power, f)
    return power


# ---- Fp2


def _mul2(x: Fp2, y: Fp2) -> Fp2:
    a, b = x
    c, d = y
    ac, bd = a * c, b * d
    return (ac - bd) % P, ((a + b) * (c + d) - ac - bd) % P


def _square2(x: Fp2) -> Fp2:
    a, b = x
    return (a + b) * (a - b) % P, 2 * a * b % P


def _scale2(x: Fp2, factor: int) -> Fp2:
    return x[0] * factor % P, x[1] * factor % P


def _invert2(x: Fp2) -> Fp2:
    a, b = x
    inverse = pow(a * a + b * b, -1, P)
    return a * inverse % P, -b * inverse % P


def _power2(x: Fp2, exponent: int) -> Fp2:
    power = (1, 0)
    for bit in bin(exponent)[2:]:
        power = _square2(power)
        if bit == "1":
            power = _mul2(power, x)
    return power


# ---- Fp6 and Fp12


def _mul6(x: Fp6, y: Fp6) -> Fp6:
    """Multiply after Karatsuba; the result is not reduced."""
    x0, x1, x2, x3, x4, x5 = x
    y0, y1, y2, y3, y4, y5 = y
    p, q = x0 * y0, x1 * y1
    a0, a1 = p - q, (x0 + x1) * (y0 + y1) - p - q
    p, q = x2 * y2, x3 * y3
    b0, b1 = p - q, (x2 + x3) * (y2 + y3) - p - q
    p, q = x4 * y4, x5 * y5
    c0, c1 = p - q, (x4 + x5) * (y4 + y5) - p - q
    s0, s1, t0, t1 = x2 + x4, x3 + x5, y2 + y4, y3 + y5
    p, q = s0 * t0, s1 * t1
    d0, d1 = p - q - b0 - c0, (s0 + s1) * (t0 + t1) - p - q - b1 - c1
    s0, s1, t0, t1 = x0 + x2, x1 + x3, y0 + y2, y1 + y3
    p, q = s0 * t0, s1 * t1
    e0, e1 = p - q - a0 - b0, (s0 + s1) * (t0 + t1) - p - q - a1 - b1
    s0, s1, t0, t1 = x0 + x4, x1 + x5, y0 + y4, y1 + y5
    p, q = s0 * t0, s1 * t1
    f0, f1 = p - q - a0 - c0, (s0 + s1) * (t0 + t1) - p - q - a1 - c1
    return (
        a0 + 9 * d0 - d1,
        a1 + 9 * d1 + d0,
        e0 + 9 * c0 - c1,
        e1 + 9 * c1 + c0,
        f0 + b0,
        f1 + b1,
    )


def _reduce6(x: Fp6) -> Fp6:
    a, b, c, d, e, f = x
    return a % P, b % P, c % P, d % P, e % P, f % P


def _mul12(x: Fp12, y: Fp12) -> Fp12:
    (x_low, x_high), (y_low, y_high) = x, y
    low, high = _mul6(x_low, y_low), _mul6(x_high, y_high)
    both = _mul6(_add6(x_low, x_high), _add6(y_low, y_high))
    a, b, c, d, e, f = low
    g, h, i, j, k, m = high
    n, o, p, q, r, s = both
    return (
        ((a + 9 * k - m) % P, (b + 9 * m + k) % P, (c + g) % P, (d + h) % P, (e + i) % P, (f + j) % P),
        ((n - a - g) % P, (o - b - h) % P, (p - c - i) % P, (q - d - j) % P, (r - e - k) % P, (s - f - m) % P),
    )


def _square12(x: Fp12) -> Fp12:
    """Square with two multiplications: (a + b)(a + v b) - ab - v ab + 2 ab w."""
    low, high = x
    g, h, i, j, k, m = high
    turned = (9 * k - m, 9 * m + k, g, h, i, j)
    a, b, c, d, e, f = _mul6(low, high)
    n, o, p, q, r, s = _mul6(_add6(low, high), _add6(low, turned))
    return (
        (
            (n - a - 9 * e + f) % P,
            (o - b - 9 * f - e) % P,
            (p - c - a) % P,
            (q - d - b) % P,
            (r - e - c) % P,
            (s - f - d) % P,
        ),
        (2 * a % P, 2 * b % P, 2 * c % P, 2 * d % P, 2 * e % P, 2 * f % P),
    )


def _add6(x: Fp6, y: Fp6) -> Fp6:
    return x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3], x[4] + y[4], x[5] + y[5]


def _conjugate(x: Fp12) -> Fp12:
    a, b, c, d, e, f = x[1]
    return x[0], (-a % P, -b % P, -c % P, -d % P, -e % P, -f % P)


def _invert12(x: Fp12) -> Fp12:
    """Return (a - b w) / (a^2 - v b^2)."""
    low, high = x
    a, b = _mul6(low, low), _mul6(high, high)
    norm = (a[0] - 9 * b[4] + b[5], a[1] - 9 * b[5] - b[4], a[2] - b[0], a[3] - b[1], a[4] - b[2], a[5] - b[3])
    inverse = _invert6(_reduce6(norm))
    minus = _conjugate(x)[1]
    return _reduce6(_mul6(low, inverse)), _reduce6(_mul6(minus, inverse))


def _invert6(x: Fp6) -> Fp6:
    a, b, c = (x[0], x[1]), (x[2], x[3]), (x[4], x[5])
    bc, cc, ac = _mul2(b, c), _square2(c), _mul2(a, c)
    aa, ab, bb = _square2(a), _mul2(a, b), _square2(b)
    d = ((aa[0] - 9 * bc[0] + bc[1]) % P, (aa[1] - 9 * bc[1] - bc[0]) % P)
    e = ((9 * cc[0] - cc[1] - ab[0]) % P, (9 * cc[1] + cc[0] - ab[1]) % P)
    f = ((bb[0] - ac[0]) % P, (bb[1] - ac[1]) % P)
    ce, bf, ad = _mul2(c, e), _mul2(b, f), _mul2(a, d)
    s0, s1 = ce[0] + bf[0], ce[1] + bf[1]
    inverse = _invert2((ad[0] + 9 * s0 - s1, ad[1] + 9 * s1 + s0))
    d, e, f = _mul2(d, inverse), _mul2(e, inverse), _mul2(f, inverse)
    return d[0], d[1], e[0], e[1], f[0], f[1]


# ---- Frobenius: x -> x^P


@cache
def _frobenius_factors(times: int) -> tuple[Fp2, ...]:
    """Return the factor of each w^k, k = 0 .. 5: xi^(k (P^times - 1) / 6)."""
    base = _power2((9, 1), (P**times - 1) // 6)
    return tuple(_power2(base, k) for k in range(6))


def _frobenius(x: Fp12, times: int) -> Fp12:
    sign = -1 if times & 1 else 1
    factors = _frobenius_factors(times)
    low: list[int] = []
    high: list[int] = []
    for k in range(3):
        low += _mul2((x[0][2 * k], sign * x[0][2 * k + 1]), factors[2 * k])
        high += _mul2((x[1][2 * k], sign * x[1][2 * k + 1]), factors[2 * k + 1])
    return (low[0], low[1], low[2], low[3], low[4], low[5]), (high[0], high[1], high[2], high[3], high[4], high[5])


def _frobenius_of_twist(q: tuple[Fp2, Fp2]) -> tuple[Fp2, Fp2]:
    """Apply Frobenius to the image in E(Fp12) and come back."""
    factors = _frobenius_factors(1)
    (x, y) = q
    return _mul2((x[0], -x[1]), factors[2]), _mul2((y[0], -y[1]), factors[3])


# ---- The group of order ORDER on E'


def _is_killed_by_order(x2: Fp2, y2: Fp2) -> bool:
    """Multiply by ORDER in Jacobian coordinates and say whether that is infinity."""
    x, y, z = x2, y2, (1, 0)
    for bit in bin(ORDER)[3:]:
        if z == (0, 0):  # the point's order is small; an addition starts again from the point
            if bit == "1":
                x, y, z = x2, y2, (1, 0)
            continue
        yy = _square2(y)
        s = _scale2(_mul2(x, yy), 4)
        m = _scale2(_square2(x), 3)
        z = _scale2(_mul2(y, z), 2)
        square, quad = _square2(m), _square2(yy)
        x = ((square[0] - 2 * s[0]) % P, (square[1] - 2 * s[1]) % P)
        product = _mul2(m, (s[0] - x[0], s[1] - x[1]))
        y = ((product[0] - 8 * quad[0]) % P, (product[1] - 8 * quad[1]) % P)
        if bit == "1":
            x, y, z = _add_affine(x, y, z, x2, y2)
    return z == (0, 0)


def _add_affine(x: Fp2, y: Fp2, z: Fp2, x2: Fp2, y2: Fp2) -> tuple[Fp2, Fp2, Fp2]:
    if z == (0, 0):
        return x2, y2, (1, 0)
    zz = _square2(z)
    u, s = _mul2(x2, zz), _mul2(y2, _mul2(zz, z))
    h, r = ((u[0] - x[0]) % P, (u[1] - x[1]) % P), ((s[0] - y[0]) % P, (s[1] - y[1]) % P)
    if h == (0, 0):
        if r == (0, 0):  # the same point: a tangent, found by doubling the affine one
            slope = _mul2(_scale2(_square2(x2), 3), _invert2((2 * y2[0], 2 * y2[1])))
            doubled = _step(slope, (x2, y2), x2)
            return doubled[0], doubled[1], (1, 0)
        return (1, 0), (1, 0), (0, 0)
    hh = _square2(h)
    hhh, v, rr = _mul2(h, hh), _mul2(x, hh), _square2(r)
    x3 = ((rr[0] - hhh[0] - 2 * v[0]) % P, (rr[1] - hhh[1] - 2 * v[1]) % P)
    left, right = _mul2(r, (v[0] - x3[0], v[1] - x3[1])), _mul2(y, hhh)
    return x3, ((left[0] - right[0]) % P, (left[1] - right[1]) % P), _mul2(z, h)
