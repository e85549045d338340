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
type Alternatives = readonly (readonly Element[])[]

/** Thrown when a grammar is too large to be counted. */
export class TooCostly extends Error {
  override readonly name = 'TooCostly'
}

/** Maximum elements of a grammar with its repetitions written out. */
const MAX_ELEMENTS = 200_000

/** The rules of a grammar, with repetitions written as llama.cpp writes them. */
export class GrammarRules {
  readonly rules: Alternatives[] = []
  elements = 0

  /** Adds a rule. Its alternatives may be set later, because it may contain itself. */
  add(alternatives: Alternatives = []): number {
    const index = this.rules.push([]) - 1
    this.set(index, alternatives)
    return index
  }

  set(index: number, alternatives: Alternatives): void {
    for (const { length } of alternatives) this.elements += length + 1
    if (this.elements > MAX_ELEMENTS) throw new TooCostly()
    this.rules[index] = alternatives
  }

  /** Writes `piece{least,most}`: the piece as often as required, then a chain of optional rules. */
  repeat(piece: readonly Element[], least: number, most: number): Element[] {
    if (least > LLAMA_MOST_REPETITIONS) throw new TooCostly()
    this.elements += piece.length * least
    if (this.elements > MAX_ELEMENTS) throw new TooCostly()
    const made: Element[] = []
    for (let count = 0; count < least; count++) for (const each of piece) made.push(each)
    // llama.cpp treats large limits as unlimited.
    if (most > LLAMA_MOST_REPETITIONS) {
      const rule = this.add()
      this.set(rule, [[...piece, { rule }], []])
      made.push({ rule })
      return made
    }
    let last: number | undefined
    for (let count = least; count < most; count++) {
      last = this.add([last === undefined ? [...piece] : [...piece, { rule: last }], []])
    }
    if (last !== undefined) made.push({ rule: last })
    return made
  }
}

const LLAMA_MOST_REPETITIONS = 2000

/** A position in the grammar with everything that is to follow. Equal stacks are one object. */
interface Stack {
  /** Index in the flat list of elements. */
  readonly at: number
  readonly below: Stack | undefined
  readonly above: Map<number, Stack>
  /** The stacks after its character was read. */
  after?: readonly (Stack | undefined)[]
}

/** Kinds of elements in the flat list. Other values are the index of a character class. */
const END = -1
const REFERENCE = -2

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

/**
 * Counts the ways to read the costliest token found, up to `enough`.
 * @param grammar its rules, and further rules at which counting starts @throws TooCostly
 */
export function countWays(grammar: { rules: GrammarRules; starts: number[] }, enough: number): number {
  return new Walk(grammar.rules.rules).ways(grammar.starts, enough)
}

class Walk {
  readonly #kind: number[] = []
  readonly #rule: number[] = []
  readonly #classes: CharacterClass[] = []
  readonly #alternatives: number[][] = []
  readonly #bottom: Stack = { at: END, below: undefined, above: new Map() }
  #steps = 0

  constructor(rules: readonly Alternatives[]) {
    for (const alternatives of rules) {
      this.#alternatives.push(
        alternatives.map(sequence => {
          const begin = this.#kind.length
          for (const element of sequence) {
            const reference = 'rule' in element
            this.#kind.push(reference ? REFERENCE : this.#classes.length)
            this.#rule.push(reference ? element.rule : END)
            if (!reference) this.#classes.push(element)
          }
          this.#kind.push(END)
          this.#rule.push(END)
          return begin
        })
      )
    }
  }

  ways(starts: readonly number[], enough: number): number {
    this.#requireQuickCheck()
    let most = 0
    for (const start of new Set([0, ...starts])) {
      let stacks = this.#alternatives[start]!.flatMap(at => this.#closure([this.#push(this.#bottom, at)]))
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
    for (let step = 0; step < TOKEN_LENGTH && ways.size > 0; step++) {
      let best: Map<Stack, number> | undefined
      let most = -1
      for (const character of this.#likelyCharacters(ways)) {
        const next = new Map<Stack, number>()
        let sum = 0
        for (const [stack, count] of ways) {
          this.#step()
          if (!this.#takes(this.#classes[this.#kind[stack.at]!]!, character)) continue
          for (const after of this.#after(stack)) {
            sum += count
            if (after) next.set(after, (next.get(after) ?? 0) + count)
          }
        }
        if (sum > most) {
          most = sum
          best = next
        }
      }
      if (!best || best.size === 0) break
      cost += most
      ways = best
      if (cost > enough) break
    }
    return { cost, stacks: [...ways.keys()] }
  }

  /** Returns some characters, starting with those that continue the most ways. */
  #likelyCharacters(ways: ReadonlyMap<Stack, number>): number[] {
    const classes = new Map<CharacterClass, number>()
    for (const [{ at }, count] of ways) {
      const kind = this.#classes[this.#kind[at]!]!
      classes.set(kind, (classes.get(kind) ?? 0) + count)
    }
    const candidates = new Set<number>(USUAL)
    for (const { ranges, negated } of classes.keys()) {
      if (ranges.length > 0) candidates.add(negated ? ranges[0]![1] + 1 : ranges[0]![0])
      if (candidates.size > MAX_CANDIDATES) break
    }
    const counted = [...candidates].map(character => {
      let sum = 0
      for (const [kind, count] of classes) if (this.#takes(kind, character)) sum += count
      return { character, sum }
    })
    return counted
      .filter(({ sum }) => sum > 0)
      .sort((a, b) => b.sum - a.sum)
      .slice(0, TRIED)
      .map(({ character }) => character)
  }

  #takes({ ranges, negated = false }: CharacterClass, character: number): boolean {
    this.#steps += ranges.length >> 3
    return ranges.some(([low, high]) => character >= low && character <= high) !== negated
  }

  #step(): void {
    if (++this.#steps > MAX_STEPS) throw new TooCostly()
  }

  /** Pushes a position onto a stack. Returns the same stack if the sequence ends there. */
  #push(below: Stack, at: number): Stack {
    if (this.#kind[at] === END) return below
    let stack = below.above.get(at)
    if (!stack) {
      stack = { at, below, above: new Map() }
      below.above.set(at, stack)
    }
    return stack
  }

  #after(stack: Stack): readonly (Stack | undefined)[] {
    stack.after ??= this.#closure([this.#push(stack.below!, stack.at + 1)])
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
      if (stack === this.#bottom) found.push(undefined)
      else if (this.#kind[stack.at] !== REFERENCE) found.push(stack)
      else {
        const rest = this.#push(stack.below!, stack.at + 1)
        for (const at of this.#alternatives[this.#rule[stack.at]!]!) todo.push(this.#push(rest, at))
      }
    }
    return found
  }

  /**
   * llama.cpp looks for left-recursive rules by following the beginnings of all alternatives, however often it has seen
   * them. Rules that each begin with the next one twice take forever.
   */
  #requireQuickCheck(): void {
    const empty = this.#mayBeEmpty()
    const cost = new Map<number, number>()
    const open = new Set<number>()
    const visit = (rule: number): number => {
      const known = cost.get(rule)
      if (known !== undefined || open.has(rule)) return known ?? 1
      // Neither llama.cpp's call stack nor this one is unlimited.
      if (open.size > DEEPEST_BEGINNING) throw new TooCostly()
      open.add(rule)
      let sum = 1
      for (const begin of this.#alternatives[rule]!) {
        for (let at = begin; this.#kind[at] === REFERENCE; at++) {
          sum += visit(this.#rule[at]!)
          if (!empty[this.#rule[at]!]) break
        }
      }
      open.delete(rule)
      cost.set(rule, sum)
      if (sum > MAX_STEPS) throw new TooCostly()
      return sum
    }
    for (let rule = 0; rule < this.#alternatives.length; rule++) visit(rule)
  }

  #mayBeEmpty(): boolean[] {
    const empty = this.#alternatives.map(() => false)
    for (let changed = true; changed; ) {
      changed = false
      for (const [rule, alternatives] of this.#alternatives.entries()) {
        if (empty[rule]) continue
        const able = alternatives.some(begin => {
          let at = begin
          while (this.#kind[at] === REFERENCE && empty[this.#rule[at]!]) at++
          return this.#kind[at] === END
        })
        if (able) {
          empty[rule] = true
          changed = true
        }
      }
    }
    return empty
  }
}

const DEEPEST_BEGINNING = 4000
