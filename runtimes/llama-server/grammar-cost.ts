/*
 * What a grammar costs llama.cpp. It follows a grammar with a list of stacks, one for each place of the grammar where the
 * text so far may be, and looks at every token of the vocabulary by trying its characters one after the other on each
 * stack, without merging the stacks that come out of that (`llama_grammar_reject_candidates_for_stack`). So what counts
 * are the ways in which the characters of one token can be read: `[a-z]{0,2000}` has one and is cheap, `([a-z]?){0,30}`
 * has 2^16 for sixteen letters and takes minutes for a token. Nested repetitions of what may be empty or is followed by
 * more of the same multiply them. The ways are counted here by following the grammar in the same manner, but with equal
 * stacks merged and their ways added.
 */

/** Code points from the first to the second, in pairs. */
interface CharacterClass {
  ranges: readonly (readonly [number, number])[]
  /** Whether it stands for all other characters. */
  negated?: boolean
}

export type Element = CharacterClass | { rule: number }
type Alternatives = readonly (readonly Element[])[]

/** Thrown where a grammar is more than is counted. */
export class TooCostly extends Error {
  override readonly name = 'TooCostly'
}

/** Most elements of a grammar with its repetitions written out. */
const MAX_ELEMENTS = 200_000

/** The rules of a grammar, with repetitions written as llama.cpp writes them. */
export class GrammarRules {
  readonly rules: Alternatives[] = []
  elements = 0

  /** Adds a rule; its alternatives may be set later, since it may contain itself. */
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

  /**
   * `piece{least,most}`: the piece as often as it must be, then a chain of rules each of which may be left out.
   * @param most infinite where there is no bound
   */
  repeat(piece: readonly Element[], least: number, most: number): Element[] {
    if (least > LLAMA_MOST_REPETITIONS) throw new TooCostly()
    this.elements += piece.length * least
    if (this.elements > MAX_ELEMENTS) throw new TooCostly()
    const made: Element[] = []
    for (let count = 0; count < least; count++) for (const each of piece) made.push(each)
    // llama.cpp takes large bounds for none.
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

/** A place in the grammar with all that is to follow. Equal ones are one object. */
interface Stack {
  /** Of the flat list of elements. */
  readonly at: number
  readonly below: Stack | undefined
  readonly above: Map<number, Stack>
  /** The stacks after its character was read. */
  after?: readonly (Stack | undefined)[]
}

/** Kinds of the flat list; others are the index of a character class. */
const END = -1
const REFERENCE = -2

/** Characters of a long token. */
const TOKEN_LENGTH = 16
/** How many such tokens are followed one after the other, since stacks may grow more over a longer text. */
const TOKENS = 3
/** How many of the characters that the most stacks take are tried at each step, and of how many they are chosen. */
const TRIED = 3
const MAX_CANDIDATES = 24
/** A letter, a digit, a space and a quotation mark. */
const USUAL = [97, 48, 32, 34]
/**
 * A stack at the beginning of a token is tried against the whole vocabulary: with 130,000 tokens, an enum of 300 values
 * takes 0.3 s of processor time for each token of the answer.
 */
const FIRST_WEIGHT = 4
/** Steps of one count, so that it takes no longer than some ten milliseconds. */
const MAX_STEPS = 40_000

/** A grammar, and rules at which ways are counted besides the first one. */
export interface CountedGrammar {
  rules: GrammarRules
  starts: number[]
}

/**
 * The ways in which the costliest token can be read that was found.
 * @param enough where counting ends
 * @throws TooCostly where it is too much to be counted
 */
export function waysOf({ rules: { rules }, starts }: CountedGrammar, enough: number): number {
  return new Walk(rules).ways(starts, enough)
}

class Walk {
  readonly #kind: number[] = []
  readonly #rule: number[] = []
  readonly #classes: CharacterClass[] = []
  /** Where the alternatives of each rule begin in the flat list. */
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

  /** Reads the characters that the most stacks take. */
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

  /** Some characters, those first that the most ways lead on by. */
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

  /** A stack with one more place on it; none where the sequence ends there. */
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

  /** The stacks that have a character on top; undefined for the end of the text. */
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
   * llama.cpp looks for rules that begin with themselves by following the beginnings of all alternatives, however often
   * it has seen them: rules that each begin with the next one twice take it for ever.
   */
  #requireQuickCheck(): void {
    const empty = this.#mayBeEmpty()
    const cost = new Map<number, number>()
    const open = new Set<number>()
    const visit = (rule: number): number => {
      const known = cost.get(rule)
      if (known !== undefined || open.has(rule)) return known ?? 1
      // llama.cpp's own stack, and this one, are not without end.
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
