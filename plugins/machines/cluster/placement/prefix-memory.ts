import { hash } from 'node:crypto'
import type { EngineFields } from '../../../../core/contracts/engines.ts'
import { getOrAdd } from '../../../../core/system/collections.ts'
import { isObject } from '../../../../core/system/json-object.ts'

/** The prefixes of a prompt as digests. The text cannot be recovered from them. */
export interface PromptBlocks {
  /** In order. Each digest represents the whole prompt up to its end. At least one. */
  readonly blocks: readonly PromptBlock[]
  /** Approximate characters of the prompt. Images count by their processing cost. */
  readonly length: number
  /** The same for all requests of a conversation: derived from its first question, or from the client's name for it. */
  readonly key: number
  /** Whether it already contains an answer, so some node has read it before. */
  readonly continued: boolean
  /** The client's id of the conversation, hashed. */
  readonly session: number | undefined
}

export interface PromptBlock {
  readonly digest: number
  readonly end: number
  /** Worth remembering for other prompts with this prefix. Other blocks only mark where an earlier prompt ended. */
  readonly kept: boolean
}

/** The owner and model of a prompt. Prompts of different owners or models never match. */
export interface PromptScope {
  /** As `modelKey` returns it. */
  model: string
  owner: string | undefined
  /** The client's name for the conversation, such as from a header. */
  session?: string | undefined
}

/** Fields that chat templates put before the first message, or that change the whole prompt. */
const HEAD_FIELDS = [
  'tools',
  'chat_template',
  'chat_template_kwargs',
  'reasoning_effort',
  'input_prefix',
  'input_suffix'
]

/** Longer strings in parts that are not text are media: images, sounds. */
const MEDIA_FROM_LENGTH = 512
/** Assumed characters of an image or a sound: some hundreds of tokens. */
const MEDIA_LENGTH = 2048

/**
 * Computes the rolling digests of a request's prompt (`messages` or `prompt`, and the other fields that its template
 * sees): at the end of each message, and within one at characters 256, 384, 512, 768, 1024, … Prompts with the same
 * prefix have the same digests up to there.
 */
export function promptBlocks(request: EngineFields, { model, owner, session }: PromptScope): PromptBlocks {
  const { scope, begun } = scopeOf(owner, model)
  const { messages, prompt } = request
  const isPlain = HEAD_FIELDS.every(name => request[name] === undefined)
  const head = isPlain ? PLAIN_HEAD : JSON.stringify(HEAD_FIELDS.map(name => request[name]))
  const parts = [head, ...(Array.isArray(messages) ? messages.map(textOfMessage) : [getText(prompt)])]
  const blocks: PromptBlock[] = []
  let rolling = scope
  let length = 0
  let next = 256
  let key: number | undefined
  const first = Array.isArray(messages) ? messages.findIndex(message => message?.role === 'user') + 1 : 0
  parts.forEach((part, index) => {
    for (let from = 0; from < part.length; ) {
      let to = Math.min(part.length, from + next - length)
      // A surrogate pair is not split.
      if (to < part.length && isSecondHalf(part.charCodeAt(to))) to++
      rolling = isPlain && index === 0 ? begun : sha256(`${rolling}${part.slice(from, to)}`)
      length += to - from
      from = to
      const isMark = length >= next
      while (next <= length) next = nextMark(next)
      const isLast = index === parts.length - 1 && to === part.length
      if (isMark || to === part.length)
        blocks.push({ digest: toNumber(rolling), end: length, kept: isMark || isLast || index === 1 })
      // A text completion has no first question: its first characters identify it.
      if (first > 0 ? index === first && to === part.length : index > 0) key ??= toNumber(rolling)
    }
  })
  const named = session === undefined ? undefined : toNumber(sha256(`${scope}session ${session}`))
  const continued = Array.isArray(messages) && messages.some(message => message?.role === 'assistant')
  return { blocks, length, key: named ?? key ?? toNumber(rolling), continued, session: named }
}

/** The head of a request without any of its fields, which nearly all have. Shorter than the first mark. */
const PLAIN_HEAD = JSON.stringify(HEAD_FIELDS.map(() => null))

/** Digests of scopes by owner and model, alone and with a plain head. */
const scopes = new Map<string, { scope: string; begun: string }>()
const MAX_SCOPES = 10_000

function scopeOf(owner: string | undefined, model: string) {
  const text = JSON.stringify([owner ?? null, model])
  return getOrAdd(scopes, text, () => {
    if (scopes.size >= MAX_SCOPES) scopes.clear()
    const scope = sha256(text)
    return { scope, begun: sha256(`${scope}${PLAIN_HEAD}`) }
  })
}

const sha256 = (text: string) => hash('sha256', text)

const toNumber = (digest: string) => Number.parseInt(digest.slice(0, 12), 16)

/** Powers of two, and the middle between two of them. */
const nextMark = (mark: number): number => (Number.isInteger(Math.log2(mark)) ? mark * 1.5 : (mark / 3) * 4)

const isSecondHalf = (unit: number) => unit >= 0xdc00 && unit <= 0xdfff

/** Formats a message with marks of its boundaries, so that the text of one message cannot look like two. */
function textOfMessage(message: unknown): string {
  if (!isObject(message)) return `\u0001${JSON.stringify(message)}\u0002`
  const { role, content, ...others } = message
  return `\u0001${role}\u0002${getText(content)}\u0002${Object.keys(others).length ? getText([others]) : ''}\u0003`
}

function getText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return JSON.stringify(content) ?? ''
  return content.map(textOfPart).join('\u0002')
}

function textOfPart(part: unknown): string {
  if (isObject(part) && typeof part.text === 'string' && Object.keys(part).length <= 2) return part.text
  let media = 0
  const text = JSON.stringify(part, (_, value) => {
    if (typeof value !== 'string' || value.length < MEDIA_FROM_LENGTH) return value
    media++
    return sha256(value)
  })
  return text.padEnd(media * MEDIA_LENGTH)
}

const CHARACTERS_PER_TOKEN = 4
/** Minimum share of a slot's cached prompt that a prompt must repeat to continue it. Engines do the same. */
const MIN_CONTINUED_SHARE = 0.5

interface Sequence {
  readonly digests: readonly number[]
  readonly length: number
  readonly usedAt: number
  inSlot: boolean
}

/** The prompts that the slots of a model at one node have processed. */
interface SlotMemory {
  slots: number
  /** Characters that fit in its slots together, and in the storage beside them. */
  capacity: number
  length: number
  /** In its slots, least recently used first; at most one per slot. */
  readonly inSlots: Set<Sequence>
  /** Evicted from its slots, but perhaps stored beside them; oldest first. */
  readonly beside: Set<Sequence>
}

/** The sequences of a node that contain a digest. */
interface Holding {
  readonly member: string
  count: number
  last: Sequence | undefined
}

/** The engine that processes a prompt: a model (`modelKey`) at a node, with the figures of its `NodeModel`. */
export interface Reader {
  member: string
  model: string
  slots: number
  context: number
  /** Tokens of conversations stored beside its slots. Absent if it stores none. */
  storedTokens?: number | undefined
}

export type PrefixMatches = ReturnType<PrefixMemory['find']>

/**
 * Remembers the prompts that each node has processed, as digests of prefixes. There are two limits: a node cannot hold
 * more than its slots (slots × context) and its reported storage, and all nodes share a maximum number of
 * conversations. It is only an estimate, because other gateways send requests to the nodes too.
 */
export class PrefixMemory {
  readonly #most: number
  readonly #holdings = new Map<number, Holding | Map<string, Holding>>()
  /** By node, then by model. */
  readonly #members = new Map<string, Map<string, SlotMemory>>()
  #memories = 0
  #sequences = 0

  /** @param most conversations that are remembered */
  constructor(most = 100_000) {
    this.#most = most
  }

  get size(): { sequences: number; digests: number } {
    return { sequences: this.#sequences, digests: this.#holdings.size }
  }

  read({ member, model, slots, context, storedTokens }: Reader, prompt: PromptBlocks, now: number): void {
    const memory = this.#getMemory(member, model)
    memory.slots = Math.max(1, slots)
    const inSlots = memory.slots * (context || 4096)
    // The conversation that leaves a slot now is stored too.
    const beside = storedTokens === undefined ? 0 : storedTokens + (context || 4096)
    memory.capacity = (inSlots + beside) * CHARACTERS_PER_TOKEN
    const before = this.#match(prompt).find(({ holding }) => of(holding, member))
    const earlier = before && findContinued(of(before.holding, member)!, before.end)
    if (earlier) this.#drop(member, memory, earlier)
    const digests = prompt.blocks.filter(({ kept }) => kept).map(({ digest }) => digest)
    if (prompt.session !== undefined) digests.push(prompt.session)
    const sequence = { digests, length: prompt.length, usedAt: now, inSlot: true }
    memory.inSlots.add(sequence)
    memory.length += sequence.length
    this.#sequences++
    for (const digest of digests) this.#hold(digest, member, sequence)
    this.#shrink(member, memory)
    if (this.#sequences <= this.#most) return
    // The share of each node has become smaller.
    for (const [name, models] of this.#members) for (const other of models.values()) this.#shrink(name, other)
  }

  /** Records that an engine with stored conversations was unloaded. */
  emptySlots(member: string, model: string): void {
    const memory = this.#members.get(member)?.get(model)
    if (!memory) return
    for (const sequence of memory.inSlots) {
      sequence.inSlot = false
      memory.beside.add(sequence)
    }
    memory.inSlots.clear()
  }

  forget(member: string, model?: string): void {
    const models = this.#members.get(member)
    if (!models) return
    for (const [key, memory] of models) {
      if (model !== undefined && key !== model) continue
      for (const sequence of [...memory.beside, ...memory.inSlots]) this.#drop(member, memory, sequence)
      models.delete(key)
      this.#memories--
    }
    if (!models.size) this.#members.delete(member)
  }

  find(prompt: PromptBlocks) {
    const matches = this.#match(prompt)
    const session = prompt.session === undefined ? undefined : this.#holdings.get(prompt.session)
    const first = (member: string) => matches.find(({ holding }) => of(holding, member))
    return {
      longest(most: number): string[] {
        const found = new Set<string>()
        for (const { holding } of session ? [{ holding: session }, ...matches] : matches) {
          for (const member of holding instanceof Map ? holding.keys() : [holding.member]) {
            if (found.size >= most) return [...found]
            found.add(member)
          }
        }
        return [...found]
      },
      /** Returns how many characters from the beginning a node has read. */
      common: (member: string) => first(member)?.end ?? 0,
      /** Whether a slot has read a prompt that this one continues. */
      goesOn(member: string): boolean {
        const match = first(member)
        const last = match && of(match.holding, member)?.last
        return last?.inSlot === true && last.length === match?.end
      },
      /** Whether the last request of this session went to the node. */
      hasSession: (member: string) => session !== undefined && of(session, member) !== undefined
    }
  }

  /** Milliseconds since a conversation used the slot that a new one would take. Infinite while a slot is empty. */
  oldest(member: string, model: string, now: number): number {
    const memory = this.#members.get(member)?.get(model)
    if (!memory || memory.inSlots.size < memory.slots) return Number.POSITIVE_INFINITY
    return Math.max(0, now - getFirst(memory.inSlots)!.usedAt)
  }

  held(member: string, model: string): number {
    const memory = this.#members.get(member)?.get(model)
    return memory ? memory.inSlots.size + memory.beside.size : 0
  }

  /** Returns the nodes' processed parts of the prompt, longest first. */
  #match({ blocks }: PromptBlocks): { end: number; holding: Holding | Map<string, Holding> }[] {
    const found: { end: number; holding: Holding | Map<string, Holding> }[] = []
    for (let index = blocks.length - 1; index >= 0; index--) {
      const { digest, end } = blocks[index]!
      const holding = this.#holdings.get(digest)
      if (holding) found.push({ end, holding })
    }
    return found
  }

  #getMemory(member: string, model: string): SlotMemory {
    const models = this.#members.get(member) ?? new Map<string, SlotMemory>()
    this.#members.set(member, models)
    let memory = models.get(model)
    if (!memory) {
      memory = { slots: 1, capacity: 0, length: 0, inSlots: new Set(), beside: new Set() }
      models.set(model, memory)
      this.#memories++
    }
    return memory
  }

  #shrink(member: string, memory: SlotMemory): void {
    while (memory.inSlots.size > memory.slots) {
      const oldest = getFirst(memory.inSlots)!
      memory.inSlots.delete(oldest)
      memory.beside.add(oldest)
      oldest.inSlot = false
    }
    const share = this.#most / this.#memories
    while (
      memory.beside.size &&
      (memory.length > memory.capacity || memory.inSlots.size + memory.beside.size > share)
    ) {
      this.#drop(member, memory, getFirst(memory.beside)!)
    }
  }

  #drop(member: string, memory: SlotMemory, sequence: Sequence): void {
    if (!memory.inSlots.delete(sequence)) memory.beside.delete(sequence)
    memory.length -= sequence.length
    this.#sequences--
    for (const digest of sequence.digests) this.#release(digest, member, sequence)
  }

  #hold(digest: number, member: string, sequence: Sequence): void {
    const known = this.#holdings.get(digest)
    const own = known && of(known, member)
    if (own) {
      own.count++
      own.last = sequence
      return
    }
    const holding: Holding = { member, count: 1, last: sequence }
    if (!known) this.#holdings.set(digest, holding)
    else if (known instanceof Map) known.set(member, holding)
    else {
      const both = new Map([
        [known.member, known],
        [member, holding]
      ])
      this.#holdings.set(digest, both)
    }
  }

  #release(digest: number, member: string, sequence: Sequence): void {
    const known = this.#holdings.get(digest)
    const own = known && of(known, member)
    if (!own) return
    own.count--
    if (own.last === sequence) own.last = undefined
    if (own.count > 0) return
    if (known instanceof Map && known.size > 1) known.delete(member)
    else this.#holdings.delete(digest)
  }
}

function of(holding: Holding | Map<string, Holding>, member: string): Holding | undefined {
  if (holding instanceof Map) return holding.get(member)
  return holding.member === member ? holding : undefined
}

/** Returns the sequence that this prompt continues, if enough of it is in the prompt. */
const findContinued = ({ last }: Holding, common: number): Sequence | undefined =>
  last && common >= MIN_CONTINUED_SHARE * last.length ? last : undefined

const getFirst = <T>(set: ReadonlySet<T>): T | undefined => set.values().next().value
