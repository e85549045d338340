import { getOrAdd } from '../../core/system/collections.ts'

/*
 * Computes what a grammar costs llama.cpp. llama.cpp follows a grammar with a list of stacks, one for each position in
 * the grammar that the text so far may have reached. It checks every token of the vocabulary by trying its characters
 * one after the other on each stack, without merging the resulting stacks
 * (`llama_grammar_reject_candidates_for_stack`). So the cost is the number of ways to read the characters of one token:
 * `[a-z]{0,2000}` has one way and is cheap, but `([a-z]?){0,30}` has 2^16 for sixteen letters and takes minutes per
 * token. Nested repetitions multiply the ways if their content may be empty or is followed by more of the same. This
 * file counts the ways by following the grammar in the same manner, but merges equal stacks and adds their ways.
 */

/** Pairs of first and last code points. */
interface CharacterClass {
  ranges: readonly (readonly [number, number])[]
  negated?: boolean
}

export type Element = CharacterClass | { rule: number }

/** A position in a rule. Undefined is the end of the rule. */
interface Position {
  readonly element: Element
  readonly next: Position | undefined
}

/** Thrown when a grammar is too large to be counted. */
export class TooCostly extends Error {
  override readonly name = 'TooCostly'
}

/** Maximum elements of a grammar with its repetitions written out. */
const MAX_ELEMENTS = 200_000
const LLAMA_MOST_REPETITIONS = 2000

/** The rules of a grammar, with repetitions written as llama.cpp writes them. */
export class GrammarRules {
  /** The first positions of each rule's alternatives. */
  readonly rules: (Position | undefined)[][] = []
  elements = 0

  /** Adds a rule. Its alternatives may be set later, because it may contain itself. */
  add(alternatives: readonly (readonly Element[])[] = []): number {
    const index = this.rules.push([]) - 1
    this.set(index, alternatives)
    return index
  }

  set(index: number, alternatives: readonly (readonly Element[])[]): void {
    this.rules[index] = alternatives.map(elements => {
      this.#count(elements.length + 1)
      return elements.reduceRight<Position | undefined>((next, element) => ({ element, next }), undefined)
    })
  }

  #count(elements: number): void {
    this.elements += elements
    if (this.elements > MAX_ELEMENTS) throw new TooCostly()
  }

  /** Writes `piece{least,most}`: the piece as often as required, then a chain of optional rules. */
  repeat(piece: readonly Element[], least: number, most: number): Element[] {
    if (least > LLAMA_MOST_REPETITIONS) throw new TooCostly()
    this.#count(piece.length * least)
    const made: Element[] = Array.from({ length: least }, () => piece).flat()
    if (most > LLAMA_MOST_REPETITIONS) {
      // llama.cpp treats large limits as unlimited.
      const rule = this.add()
      this.set(rule, [[...piece, { rule }], []])
      return [...made, { rule }]
    }
    let last: Element[] = []
    for (let count = least; count < most; count++) last = [{ rule: this.add([[...piece, ...last], []]) }]
    return [...made, ...last]
  }
}

/** A position in the grammar with everything that is to follow. Equal stacks are one object. */
interface Stack {
  /** Undefined in the stack of the end of the text. */
  readonly at: Position | undefined
  readonly below: Stack | undefined
  readonly above: Map<Position, Stack>
  /** The stacks after its character was read. */
  after?: readonly (Stack | undefined)[]
}

/** Characters of a long token. */
const TOKEN_LENGTH = 16
/** Number of such tokens that are followed in a row, because stacks may grow over a longer text. */
const TOKENS = 3
/** Characters to try at each step, and candidates among which those are chosen that most stacks accept. */
const TRIED = 3
const MAX_CANDIDATES = 24
/** A letter, a digit, a space and a quotation mark. */
const USUAL = [97, 48, 32, 34]
/** A stack at the beginning of a token is tried against the whole vocabulary. An enum of 300 values takes 0.3 s. */
const FIRST_WEIGHT = 4
/** Maximum steps of one count, so that it takes about ten milliseconds at most. */
const MAX_STEPS = 40_000
const MAX_DEPTH_OF_BEGINNINGS = 4000

/**
 * Counts the ways to read the costliest token found, up to `enough`.
 * @param grammar its rules, and further rules at which counting starts @throws TooCostly
 */
export function countWays({ rules, starts }: { rules: GrammarRules; starts: number[] }, enough: number): number {
  requireQuickCheck(rules.rules)
  return new Walk(rules.rules).ways(starts, enough)
}

/** Maximum steps for all texts that are compared with a grammar. */
const MAX_TEXT_STEPS = 200_000

/** Returns a function that reports whether a grammar admits a text. @throws TooCostly */
export function textReader({ rules }: GrammarRules): (text: string) => boolean {
  const walk = new Walk(rules, MAX_TEXT_STEPS)
  return text => walk.admits(text)
}

/**
 * llama.cpp looks for left-recursive rules by following the beginnings of all alternatives, however often it has seen
 * them. Rules that each begin with the next one twice take forever. @throws TooCostly
 */
function requireQuickCheck(rules: GrammarRules['rules']): void {
  const known = new Map<number, { cost: number; mayBeEmpty: boolean }>()
  let depth = 0
  const visit = (rule: number) => {
    const found = known.get(rule)
    if (found) return found
    // Neither llama.cpp's call stack nor this one is unlimited.
    if (++depth > MAX_DEPTH_OF_BEGINNINGS) throw new TooCostly()
    const result = { cost: 1, mayBeEmpty: false }
    // Only a left-recursive rule, which llama.cpp refuses, meets itself here.
    known.set(rule, { cost: 1, mayBeEmpty: false })
    for (let at of rules[rule]!) {
      let isEmpty = true
      for (; isEmpty && at; at = at.next) {
        const inner = 'rule' in at.element ? visit(at.element.rule) : undefined
        result.cost += inner?.cost ?? 0
        isEmpty = inner?.mayBeEmpty ?? false
      }
      result.mayBeEmpty ||= isEmpty
    }
    depth--
    known.set(rule, result)
    if (result.cost > MAX_STEPS) throw new TooCostly()
    return result
  }
  for (const rule of rules.keys()) visit(rule)
}

class Walk {
  readonly #rules: GrammarRules['rules']
  readonly #bottom: Stack = { at: undefined, below: undefined, above: new Map() }
  readonly #maxSteps: number
  #steps = 0

  constructor(rules: GrammarRules['rules'], maxSteps = MAX_STEPS) {
    this.#rules = rules
    this.#maxSteps = maxSteps
  }

  #begin(rule: number): (Stack | undefined)[] {
    return this.#rules[rule]!.flatMap(at => this.#closure([this.#push(this.#bottom, at)]))
  }

  admits(text: string): boolean {
    let stacks = new Set(this.#begin(0))
    for (const character of text) {
      const code = character.codePointAt(0)!
      const readers = [...stacks].filter(stack => stack && this.#takes(classOf(stack), code))
      stacks = new Set(readers.flatMap(stack => this.#after(stack!)))
      this.#step(1 + stacks.size)
    }
    return stacks.has(undefined)
  }

  ways(starts: readonly number[], enough: number): number {
    let most = 0
    for (const start of new Set([0, ...starts])) {
      let stacks = this.#begin(start)
      for (let token = 0; token < TOKENS && stacks.length > 0; token++) {
        const read = this.#token(new Set(stacks), enough)
        most = Math.max(most, read.cost)
        if (most > enough) return most
        stacks = read.stacks
      }
    }
    return most
  }

  /** Reads the characters that the most stacks accept. */
  #token(begin: Set<Stack | undefined>, enough: number): { cost: number; stacks: (Stack | undefined)[] } {
    let cost = begin.size * FIRST_WEIGHT
    let ways = new Map<Stack, number>()
    for (const stack of begin) if (stack) ways.set(stack, 1)
    for (let step = 0; step < TOKEN_LENGTH && cost <= enough; step++) {
      const readings = this.#likelyCharacters(ways).map(character => this.#read(ways, character))
      const [best] = readings.sort((a, b) => b.sum - a.sum)
      if (!best || best.next.size === 0) break
      cost += best.sum
      ways = best.next
    }
    return { cost, stacks: [...ways.keys()] }
  }

  /** Returns the stacks after a character, with the ways to each, and their sum. */
  #read(ways: ReadonlyMap<Stack, number>, character: number): { next: Map<Stack, number>; sum: number } {
    const next = new Map<Stack, number>()
    let sum = 0
    for (const [stack, count] of ways) {
      this.#step()
      if (!this.#takes(classOf(stack), character)) continue
      for (const after of this.#after(stack)) {
        sum += count
        if (after) next.set(after, (next.get(after) ?? 0) + count)
      }
    }
    return { next, sum }
  }

  /** Returns some characters, starting with those that continue the most ways. */
  #likelyCharacters(ways: ReadonlyMap<Stack, number>): number[] {
    const classes = new Map<CharacterClass, number>()
    for (const [stack, count] of ways) classes.set(classOf(stack), (classes.get(classOf(stack)) ?? 0) + count)
    const candidates = new Set<number>(USUAL)
    for (const { ranges, negated } of classes.keys()) {
      if (ranges.length > 0) candidates.add(negated ? ranges[0]![1] + 1 : ranges[0]![0])
      if (candidates.size > MAX_CANDIDATES) break
    }
    const counted = [...candidates].flatMap(character => {
      let sum = 0
      for (const [kind, count] of classes) if (this.#takes(kind, character)) sum += count
      return sum > 0 ? [{ character, sum }] : []
    })
    const likely = counted.sort((a, b) => b.sum - a.sum).slice(0, TRIED)
    return likely.map(({ character }) => character)
  }

  #takes({ ranges, negated = false }: CharacterClass, character: number): boolean {
    this.#steps += ranges.length >> 3
    return ranges.some(([low, high]) => character >= low && character <= high) !== negated
  }

  #step(count = 1): void {
    this.#steps += count
    if (this.#steps > this.#maxSteps) throw new TooCostly()
  }

  /** Pushes a position onto a stack. Returns the same stack if the rule ends there. */
  #push(below: Stack, at: Position | undefined): Stack {
    return at ? getOrAdd(below.above, at, () => ({ at, below, above: new Map() })) : below
  }

  #after(stack: Stack): readonly (Stack | undefined)[] {
    stack.after ??= this.#closure([this.#push(stack.below!, stack.at!.next)])
    return stack.after
  }

  /** Returns the stacks that have a character on top, and undefined for the end of the text. */
  #closure(todo: Stack[]): (Stack | undefined)[] {
    const seen = new Set<Stack>()
    const found: (Stack | undefined)[] = []
    for (let stack = todo.pop(); stack; stack = todo.pop()) {
      this.#step()
      if (seen.has(stack)) continue
      seen.add(stack)
      const { at, below } = stack
      if (!at) found.push(undefined)
      else if (!('rule' in at.element)) found.push(stack)
      else {
        const rest = this.#push(below!, at.next)
        for (const begin of this.#rules[at.element.rule]!) todo.push(this.#push(rest, begin))
      }
    }
    return found
  }
}

/** Stacks with a character on top are the only ones that wait for text. */
const classOf = (stack: Stack) => stack.at!.element as CharacterClass
