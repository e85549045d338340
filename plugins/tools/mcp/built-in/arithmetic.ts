import { Decimal } from 'decimal.js'

const MAX_LENGTH = 500
const MAX_DEPTH = 50
const MAX_FACTORIAL = 1000
/** Functions, powers and factorials, which take up to some milliseconds each. */
const MAX_CALCULATIONS = 30
/** Digits of a result that is not a whole number. */
const SHOWN_DIGITS = 30
/** Whole numbers with up to this many digits are exact. Larger exponents than the maximum overflow at once. */
const EXACT_DIGITS = 100
const Exact = Decimal.clone({ precision: EXACT_DIGITS + 10, maxE: 100_000, minE: -100_000 })

/** Functions that are only known to the digits of a floating-point number. */
const ANGLES = ['sin', 'cos', 'tan', 'asin', 'acos', 'atan'] as const
type Calculation = (...values: Decimal[]) => Decimal

const FUNCTIONS = new Map<string, Calculation>([
  ...ANGLES.map(name => [name, (x: Decimal) => new Exact(Math[name](x.toNumber()).toPrecision(15))] as const),
  ...(['abs', 'floor', 'ceil', 'trunc', 'sqrt', 'cbrt', 'exp', 'ln'] as const).map(
    name => [name, (x: Decimal) => x[name]()] as const
  ),
  ['log', x => x!.log(10)],
  ['log2', x => x!.log(2)],
  ['round', (x, digits) => x!.toDecimalPlaces(Math.min(EXACT_DIGITS, Math.max(0, digits?.toNumber() || 0)))],
  ['min', (...all) => Exact.min(...all)],
  ['max', (...all) => Exact.max(...all)]
])
const CONSTANTS = new Map([
  ['pi', Exact.acos(-1)],
  ['e', Exact.exp(1)]
])
/** How tightly each operator binds. */
const BINDING: Record<string, number> = { '+': 1, '-': 1, '*': 2, '/': 2, '%': 2, '**': 4, '^': 4, '!': 5 }
const SIGN_BINDING = 3

const TOKEN = /\s*((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[a-z]\w*|\*\*|[-+*/%^!(),]|$)/iy

/**
 * Calculates an expression. Parsing and calculating are one step: a Pratt parser.
 * @throws Error that says what is wrong
 */
export function calculate({ expression }: { expression: string }): string {
  if (expression.length > MAX_LENGTH) throw new Error(`the expression is longer than ${MAX_LENGTH} characters`)
  const text = expression.replace(/[×·]/g, '*').replace(/÷/g, '/').replace(/−/g, '-')
  let token = ''
  let at = 0
  let depth = 0
  let calculations = 0
  const next = () => {
    TOKEN.lastIndex = at
    const found = TOKEN.exec(text)
    if (!found) throw unexpected(text.slice(at).trim()[0])
    at = TOKEN.lastIndex
    token = found[1]!.toLowerCase()
  }
  const unexpected = (what = token) =>
    new Error(what === '' ? 'the expression ends too early' : `"${what}" is not expected near character ${at}`)
  const take = (wanted: string) => {
    if (token !== wanted) throw unexpected()
    next()
  }

  const countCalculation = () => {
    if (++calculations > MAX_CALCULATIONS) {
      throw new Error(`the expression has more than ${MAX_CALCULATIONS} functions, powers and factorials`)
    }
  }

  const value = (binding: number): Decimal => {
    if (++depth > MAX_DEPTH) throw new Error(`the expression is nested more than ${MAX_DEPTH} levels deep`)
    let left = operand()
    for (let own = BINDING[token]; own !== undefined && own >= binding; own = BINDING[token]) {
      const operator = token
      next()
      if (own > SIGN_BINDING) countCalculation()
      // Powers are calculated from the right: 2 ** 3 ** 2 is 2 ** 9.
      left = operator === '!' ? factorial(left) : applied(operator, left, value(own === 4 ? own : own + 1))
    }
    depth--
    return left
  }
  const operand = (): Decimal => {
    const first = token
    if (first === '') throw unexpected()
    next()
    if (first === '-') return value(SIGN_BINDING).neg()
    if (first === '+') return value(SIGN_BINDING)
    if (first === '(') {
      const inner = value(0)
      take(')')
      return inner
    }
    if (/^[\d.]/.test(first)) return checked(new Exact(first))
    const constant = CONSTANTS.get(first)
    if (constant) return constant
    const calculation = FUNCTIONS.get(first)
    if (!calculation) throw unexpected(first)
    countCalculation()
    take('(')
    const values = [value(0)]
    while (token === ',') {
      next()
      values.push(value(0))
    }
    take(')')
    return checked(calculation(...values))
  }

  next()
  const result = value(0)
  if (token !== '') throw unexpected()
  return result.isInteger() && result.e < EXACT_DIGITS
    ? result.toFixed()
    : result.toSignificantDigits(SHOWN_DIGITS).toString()
}

function applied(operator: string, left: Decimal, right: Decimal): Decimal {
  if (operator === '+') return checked(left.add(right))
  if (operator === '-') return checked(left.sub(right))
  if (operator === '*') return checked(left.mul(right))
  if (operator === '**' || operator === '^') return checked(left.pow(right))
  if (right.isZero()) throw new Error('it divides by zero')
  return checked(operator === '/' ? left.div(right) : left.mod(right))
}

function factorial(of: Decimal): Decimal {
  if (!of.isInteger() || of.lt(0) || of.gt(MAX_FACTORIAL)) {
    throw new Error(`a factorial needs a whole number from 0 to ${MAX_FACTORIAL}`)
  }
  let product = new Exact(1)
  for (let number = 2; of.gte(number); number++) product = product.mul(number)
  return product
}

/** @throws Error for values that cannot be used further */
function checked(value: Decimal): Decimal {
  if (value.isNaN()) throw new Error('the result is not a real number')
  if (!value.isFinite()) throw new Error('a number is too large')
  return value
}
