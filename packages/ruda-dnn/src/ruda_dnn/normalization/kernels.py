"""RMSNorm and LayerNorm on the device. See README.md for the mathematics.

A row's statistics are float32, as on the host; a row whose squares leave the safe range of float32
is summed again in float64, in a branch that usual rows do not take.
"""

import triton
import triton.language as tl


@triton.jit
def _exact_rstd(x_row, width, epsilon, BLOCK: tl.constexpr):
    """1 / sqrt(mean(x^2) + epsilon) without overflow or underflow."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(x_row + columns, mask=columns < width, other=0.0).to(tl.float64)
        total += value * value
    mean = tl.sum(total) / width.to(tl.float64) + epsilon.to(tl.float64)
    return (1.0 / tl.sqrt(mean)).to(tl.float32)


@triton.jit
def _weighted(value, weight, places, inside):
    """value * weight where there is one."""
    if weight is not None:
        value = value * tl.load(weight + places, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def rms_norm_forward(
    x,  # [rows, width]
    weight,  # [width] or None
    y,  # [rows, width]
    rstd,  # float32 [rows]
    width,
    epsilon,
    BLOCK: tl.constexpr,
    ONE_PASS: tl.constexpr,  # width <= BLOCK: the row stays in registers
):
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * width
    y_row = y + row * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x_row + columns, mask=inside, other=0.0).to(tl.float32)
    squares = value * value
    if not ONE_PASS:
        for start in range(BLOCK, width, BLOCK):
            places = start + columns
            more = tl.load(x_row + places, mask=places < width, other=0.0).to(tl.float32)
            squares += more * more
    total = tl.sum(squares)
    if (total > 1e-20) & (total < 1e37):
        scale = 1.0 / tl.sqrt_rn(total / width + epsilon)
    else:
        scale = _exact_rstd(x_row, width, epsilon, BLOCK)
    tl.store(rstd + row, scale)
    if ONE_PASS:
        value = _weighted(value * scale, weight, columns, inside)
        tl.store(y_row + columns, value.to(y.dtype.element_ty), mask=inside)
    else:
        for start in range(0, width, BLOCK):
            places = start + columns
            within = places < width
            more = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32) * scale
            more = _weighted(more, weight, places, within)
            tl.store(y_row + places, more.to(y.dtype.element_ty), mask=within)


@triton.jit
def rms_norm_backward(
    x,  # [rows, width]
    weight,  # [width] or None
    grad,  # [rows, width]
    rstd,  # float32 [rows]
    dx,  # [rows, width]
    width,
    BLOCK: tl.constexpr,
    ONE_PASS: tl.constexpr,
):
    """dx = rstd * (u - h * mean(u * h)) with h = x * rstd and u = grad * weight."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * width
    grad_row = grad + row * width
    dx_row = dx + row * width
    columns = tl.arange(0, BLOCK)
    scale = tl.load(rstd + row)
    products = tl.zeros([BLOCK], tl.float32)
    if ONE_PASS:
        inside = columns < width
        normal = tl.load(x_row + columns, mask=inside, other=0.0).to(tl.float32) * scale
        upper = tl.load(grad_row + columns, mask=inside, other=0.0).to(tl.float32)
        upper = _weighted(upper, weight, columns, inside)
        mean = tl.sum(tl.where(inside, upper * normal, 0.0)) / width
        result = scale * (upper - normal * mean)
        tl.store(dx_row + columns, result.to(dx.dtype.element_ty), mask=inside)
    else:
        for start in range(0, width, BLOCK):
            places = start + columns
            within = places < width
            wide = tl.load(grad_row + places, mask=within, other=0.0).to(tl.float32)
            wide = _weighted(wide, weight, places, within)
            one = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32) * scale
            products += tl.where(within, wide * one, 0.0)
        average = tl.sum(products) / width
        for start in range(0, width, BLOCK):
            places = start + columns
            within = places < width
            wide = tl.load(grad_row + places, mask=within, other=0.0).to(tl.float32)
            wide = _weighted(wide, weight, places, within)
            one = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32) * scale
            out = scale * (wide - one * average)
            tl.store(dx_row + places, out.to(dx.dtype.element_ty), mask=within)


@triton.jit
def _exact_moments(x_row, width, epsilon, BLOCK: tl.constexpr):
    """Mean as two floats and rstd, in float64."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_row + columns, mask=columns < width, other=0.0).to(tl.float64)
    count = width.to(tl.float64)
    mean = tl.sum(total) / count
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        value = tl.load(x_row + columns, mask=inside, other=0.0).to(tl.float64) - mean
        squares += tl.where(inside, value * value, 0.0)
    variance = tl.sum(squares) / count
    near = mean.to(tl.float32)
    rest = (mean - near.to(tl.float64)).to(tl.float32)
    rest = tl.where(tl.abs(near) == float("inf"), 0.0, rest)
    return near, rest, (1.0 / tl.sqrt(variance + epsilon.to(tl.float64))).to(tl.float32)


@triton.jit
def layer_norm_forward(
    x,  # [rows, width]
    weight,  # [width] or None
    bias,  # [width] or None
    y,  # [rows, width]
    mean,  # float32 [rows]
    rstd,  # float32 [rows]
    width,
    epsilon,
    BLOCK: tl.constexpr,
    ONE_PASS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * width
    y_row = y + row * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x_row + columns, mask=inside, other=0.0).to(tl.float32)
    sums = value
    if not ONE_PASS:
        for start in range(BLOCK, width, BLOCK):
            places = start + columns
            sums += tl.load(x_row + places, mask=places < width, other=0.0).to(tl.float32)
    # The mean is near + rest: x - near is exact, where a mean of 1449 rounded to float32 alone
    # would cost the values around it half their digits.
    near = tl.sum(sums) / width
    centred = tl.where(inside, value - near, 0.0)
    firsts = centred
    squares = centred * centred
    if not ONE_PASS:
        for start in range(BLOCK, width, BLOCK):
            places = start + columns
            within = places < width
            more = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32)
            more = tl.where(within, more - near, 0.0)
            firsts += more
            squares += more * more
    square = tl.sum(squares)
    if (square == 0.0) | ((square > 1e-20) & (square < 1e37)):
        rest = tl.sum(firsts) / width
        variance = tl.maximum(square / width - rest * rest, 0.0)
        scale = 1.0 / tl.sqrt_rn(variance + epsilon)
    else:
        near, rest, scale = _exact_moments(x_row, width, epsilon, BLOCK)
    tl.store(mean + row, near + rest)
    tl.store(rstd + row, scale)
    if ONE_PASS:
        value = _weighted(((value - near) - rest) * scale, weight, columns, inside)
        if bias is not None:
            value = value + tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_row + columns, value.to(y.dtype.element_ty), mask=inside)
    else:
        for start in range(0, width, BLOCK):
            places = start + columns
            within = places < width
            more = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32)
            more = _weighted(((more - near) - rest) * scale, weight, places, within)
            if bias is not None:
                more = more + tl.load(bias + places, mask=within, other=0.0).to(tl.float32)
            tl.store(y_row + places, more.to(y.dtype.element_ty), mask=within)


@triton.jit
def layer_norm_backward(
    x,  # [rows, width]
    weight,  # [width] or None
    grad,  # [rows, width]
    mean,  # float32 [rows]
    rstd,  # float32 [rows]
    dx,  # [rows, width] or None
    rest,  # float32 [rows]: mean((x - mean) * rstd), what the rounding of the mean left out
    width,
    BLOCK: tl.constexpr,
):
    """dx = rstd * (u - mean(u) - h * mean(u * h)) with h = (x - mean) * rstd - rest."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * width
    grad_row = grad + row * width
    columns = tl.arange(0, BLOCK)
    stored = tl.load(mean + row)
    scale = tl.load(rstd + row)
    rests = tl.zeros([BLOCK], tl.float32)
    uppers = tl.zeros([BLOCK], tl.float32)
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        places = start + columns
        within = places < width
        centred = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32) - stored
        centred = tl.where(within, centred, 0.0)
        rests += centred
        if dx is not None:
            upper = tl.load(grad_row + places, mask=within, other=0.0).to(tl.float32)
            upper = _weighted(upper, weight, places, within)
            uppers += upper
            products += upper * (centred * scale)
    left = (tl.sum(rests) / width) * scale
    tl.store(rest + row, left)
    if dx is not None:
        total = tl.sum(uppers)
        upper_mean = total / width
        product_mean = (tl.sum(products) - left * total) / width
        for start in range(0, width, BLOCK):
            places = start + columns
            within = places < width
            normal = tl.load(x_row + places, mask=within, other=0.0).to(tl.float32) - stored
            normal = normal * scale - left
            upper = tl.load(grad_row + places, mask=within, other=0.0).to(tl.float32)
            upper = _weighted(upper, weight, places, within)
            out = scale * ((upper - upper_mean) - normal * product_mean)
            tl.store(dx + row * width + places, out.to(dx.dtype.element_ty), mask=within)


@triton.jit
def parameter_partials(
    x,  # [rows, width]
    grad,  # [rows, width]
    mean,  # float32 [rows]; None: RMSNorm
    rstd,  # float32 [rows]
    rest,  # float32 [rows]; None: RMSNorm
    weight_sums,  # float32 [parts, width] or None
    bias_sums,  # float32 [parts, width] or None
    rows,
    parts,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of grad * h and of grad over the consecutive rows of one part."""
    part = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    share = rows // parts
    extra = rows - share * parts
    begin = part * share + tl.minimum(part, extra)
    end = begin + share + tl.where(part < extra, 1, 0)
    weights = tl.zeros([ROWS, COLUMNS], tl.float32)
    biases = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, (end - begin).to(tl.int32), ROWS):
        row = begin + start + tl.arange(0, ROWS)
        valid = row < end
        inside = valid[:, None] & (columns < width)[None, :]
        places = row[:, None] * width + columns[None, :]
        wide = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
        if weight_sums is not None:
            normal = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
            if mean is not None:
                normal = normal - tl.load(mean + row, mask=valid, other=0.0)[:, None]
            normal = normal * tl.load(rstd + row, mask=valid, other=0.0)[:, None]
            if rest is not None:
                normal = normal - tl.load(rest + row, mask=valid, other=0.0)[:, None]
            weights += wide * normal
        if bias_sums is not None:
            biases += wide
    target = part * width + columns
    if weight_sums is not None:
        tl.store(weight_sums + target, tl.sum(weights, 0), mask=columns < width)
    if bias_sums is not None:
        tl.store(bias_sums + target, tl.sum(biases, 0), mask=columns < width)


@triton.jit
def sum_partials(
    partials,  # float32 [parts, width]
    out,  # [width]
    parts,
    width,
    BLOCK: tl.constexpr,
):
    """Sums over the parts, in their order."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        row = tl.cast(part, tl.int64) * width
        total += tl.load(partials + row + columns, mask=inside, other=0.0)
    tl.store(out + columns, total.to(out.dtype.element_ty), mask=inside)
