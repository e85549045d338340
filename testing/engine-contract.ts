import assert from 'node:assert/strict'
import type { AnswerSink, Delta, Engine, EngineProvider, TokenUsage } from '../core/contracts/engines.ts'
import { defaultMode, listOperations } from '../core/models/model-operations.ts'
import { isObject } from '../core/system/json-object.ts'
import { type Steps, shown } from './steps.ts'
import type { TestCorral } from './test-corral.ts'

const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0
const isText = (value: unknown) => typeof value === 'string'

/** Pieces that an engine may still send after its request was aborted, because they were already on their way. */
const MAX_LATE_PIECES = 2

/** How long the reader of the contract takes for a piece: an engine that does not wait for it is found. */
const READING_TIME = 5

/** The methods of which an engine has at least one. */
const ANSWERS = ['chat', 'completion', 'embed', 'rerank', 'operations'] as const

const isPiece = (piece: unknown) => isObject(piece) && isCount(piece.index) && isText(piece.arguments)

/** The fields of a delta, what each one is, and how to tell. corral itself adds `hosted`. */
const FIELDS: Record<Exclude<keyof Delta, 'hosted'>, [what: string, test: (value: unknown) => boolean]> = {
  choice: ['the number of a choice, from 0', isCount],
  content: ['a text', isText],
  thinking: ['a text', isText],
  toolCalls: ['a list of { index, id, name, arguments }', value => Array.isArray(value) && value.every(isPiece)],
  logprobs: ['a list', Array.isArray],
  finish: ['"stop", "length" or "tool_calls"', value => ['stop', 'length', 'tool_calls'].includes(value as string)],
  tokens: ['a count of tokens', isCount],
  stopSequence: ['a text', isText],
  usage: ['an object', isObject],
  timing: ['an object', isObject],
  reading: ['an object', isObject],
  bytes: ['a Uint8Array', value => value instanceof Uint8Array],
  type: ['a media type', isText],
  json: ['an object', isObject],
  extra: ['an object', isObject],
  native: ['an object', isObject]
}

export function checkFacts(engine: Engine, provider: EngineProvider): void {
  assert.ok(typeof engine.id === 'string' && engine.id !== '', 'an engine has an id')
  assert.equal(engine.provider, provider.name, 'an engine names its provider')
  assert.ok(isObject(engine.spec?.variant), 'an engine has the "spec" that its provider was asked to start')
  assert.ok(isCount(engine.slots) && engine.slots > 0, `an engine has at least one slot, not ${shown(engine.slots)}`)
  assert.ok(isCount(engine.contextSize), `contextSize is a count of tokens, not ${shown(engine.contextSize)}`)
  assert.equal(typeof engine.exited?.then, 'function', 'an engine has the promise "exited"')
  for (const call of ['stop', 'logTail'] as const) assert.equal(typeof engine[call], 'function', `it has "${call}"`)
  let lines: unknown
  assert.doesNotThrow(() => {
    lines = engine.logTail()
  }, '"logTail" does not throw')
  assert.ok(Array.isArray(lines) && lines.every(isText), `logTail returns a list of lines, not ${shown(lines)}`)
  assert.ok(
    ANSWERS.some(name => engine[name]),
    `an engine has one of ${ANSWERS.map(name => `"${name}"`).join(', ')}`
  )
}

function checkUsage(usage: TokenUsage): void {
  for (const name of ['promptTokens', 'cachedTokens', 'completionTokens'] as const) {
    assert.ok(isCount(usage[name]), `usage.${name} is a count of tokens, not ${shown(usage[name])}`)
  }
  assert.ok(usage.cachedTokens <= usage.promptTokens, 'usage.cachedTokens is part of usage.promptTokens')
}

function checkDelta(delta: unknown): void {
  assert.ok(isObject(delta), `a delta is an object, not ${shown(delta)}`)
  for (const [name, value] of Object.entries(delta)) {
    const field = Object.hasOwn(FIELDS, name) ? FIELDS[name as keyof typeof FIELDS] : undefined
    assert.ok(field, `a delta has no field "${name}"; "extra" is for fields of your own`)
    const [what, test] = field
    assert.ok(value === undefined || test(value), `"${name}" of a delta is ${what}, not ${shown(value)}`)
  }
  if (delta.usage) checkUsage(delta.usage as TokenUsage)
}

interface Reader {
  /** Called with each piece of an answer. */
  onPiece?: (() => void) | undefined
  /** Whether it takes its time, and needs counts with each piece. */
  careful?: boolean
}

/** A sink that checks what it gets. It remembers the first failure, which an engine may mistake for a disconnect. */
function checkedSink(signal: AbortSignal, { onPiece, careful = false }: Reader) {
  const ended = new Set<number>()
  const counts = new Map<number, number>()
  const state: { failure?: unknown; late?: string; settled: boolean } = { settled: false }
  let uncounted = false
  let isReading = false

  function add(delta: Delta): void {
    checkDelta(delta)
    const { choice = 0, content, thinking, toolCalls, finish, usage } = delta
    const hasText = Boolean(content || thinking || toolCalls?.length)
    assert.ok(!(ended.has(choice) && hasText), `choice ${choice} continues after its "finish"`)
    if (usage) {
      assert.ok(!uncounted, 'sink.countEach is true, but only some deltas have "usage"')
      const before = counts.get(choice) ?? 0
      const { completionTokens } = usage
      assert.ok(completionTokens >= before, `usage.completionTokens falls from ${before} to ${completionTokens}`)
      counts.set(choice, completionTokens)
    } else if (careful && hasText) uncounted = true
    if (hasText) onPiece?.()
    if (finish === undefined) return
    assert.ok(!ended.has(choice), `choice ${choice} has "finish" twice`)
    ended.add(choice)
  }

  const sink: AnswerSink = {
    signal,
    ...(careful && { countEach: true }),
    take(deltas: readonly Delta[]) {
      // An error in a timer of the plugin would end the process.
      if (state.settled) {
        state.late ??= shown(deltas)
        return undefined
      }
      try {
        assert.ok(!isReading, 'sink.take is called again before the promise that it returned has resolved: await it')
        assert.ok(Array.isArray(deltas), `sink.take gets a list of deltas, not ${shown(deltas)}`)
        for (const delta of deltas) add(delta)
      } catch (error) {
        state.failure ??= error
        throw error
      }
      if (!careful) return undefined
      isReading = true
      return new Promise(resolve =>
        setTimeout(() => {
          isReading = false
          resolve()
        }, READING_TIME)
      )
    }
  }
  return { sink, ended, state }
}

/**
 * Checks the answers of a running engine, without corral in between.
 * @returns checks that nothing came after an answer, once some time has passed
 */
export async function checkAnswers(steps: Steps, engine: Engine): Promise<() => void> {
  const request = (content: string) => ({ messages: [{ role: 'user', content }], temperature: 0, max_tokens: 200 })
  const asked = async (name: string, content: string, signal: AbortSignal, reader: Reader) => {
    const { sink, ended, state } = checkedSink(signal, reader)
    const outcome = await steps.run(name, () => {
      const answer = engine.chat!(request(content), sink)
      assert.equal(typeof answer?.then, 'function', `"chat" returns a promise, not ${shown(answer)}`)
      return answer.then(
        () => undefined,
        (error: unknown) => ({ error })
      )
    })
    state.settled = true
    if (state.failure) throw state.failure
    return { outcome, ended, state }
  }
  const { outcome, ended, state } = await asked('chat', 'Hello there', new AbortController().signal, { careful: true })
  if (outcome) throw steps.failure('chat', outcome.error)
  assert.deepEqual([...ended], [0], 'an answer ends with one "finish" for each choice')

  const long = Array.from({ length: 200 }, (_, at) => `word${at}`).join(' ')
  const controller = new AbortController()
  let late = 0
  const onPiece = () => {
    if (controller.signal.aborted) late++
    controller.abort(new Error('the client has disconnected'))
  }
  await asked('chat after its signal was aborted', long, controller.signal, { onPiece })
  assert.ok(late <= MAX_LATE_PIECES, `an aborted answer ends; ${late} pieces came after the abort`)
  let early = 0
  const gone = AbortSignal.abort(new Error('gone'))
  const before = await asked('chat with an aborted signal', long, gone, { onPiece: () => early++ })
  assert.ok(before.outcome || early === 0, 'an answer whose signal is aborted before its start is not generated')
  return () => assert.equal(state.late, undefined, `"chat" has ended its answer, and then sends ${state.late}`)
}

/** Checks the tokens of texts and conversations, if the engine supports them. */
export async function checkTokens(steps: Steps, engine: Engine): Promise<void> {
  const options = { signal: new AbortController().signal }
  const content = 'Hello there'
  const tokenized = async (more: object, form: string, test: (token: unknown) => boolean) => {
    const reply: unknown = await steps.run('tokenize', () => engine.tokenize!({ content, ...more }, options))
    const tokens = isObject(reply) ? reply.tokens : undefined
    assert.ok(Array.isArray(tokens) && tokens.every(test), `tokenize returns ${form}, not ${shown(reply)}`)
    return tokens
  }
  if (engine.tokenize) {
    const ids: number[] = await tokenized({}, '{ tokens: [1, 2, 3] }', Number.isSafeInteger)
    const isNamed = (token: unknown) => isObject(token) && Number.isSafeInteger(token.id) && token.piece !== undefined
    await tokenized({ with_pieces: true }, '{ tokens: [{ id, piece }] } if with_pieces is true', isNamed)
    if (engine.detokenize) {
      const text: unknown = await steps.run('detokenize', () => engine.detokenize!(ids, options))
      assert.ok(isText(text), `detokenize returns a text, not ${shown(text)}`)
    }
  }
  if (engine.countTokens) {
    const messages = [{ role: 'user', content }]
    const count: unknown = await steps.run('countTokens', () => engine.countTokens!({ messages }, options))
    assert.ok(isCount(count), `countTokens returns a count of tokens, not ${shown(count)}`)
  }
}

/** Checks that the engine has its model's operations, and that clients can hear its speech. */
export async function checkOperations(
  steps: Steps,
  corral: TestCorral,
  { operations, spec }: Engine,
  model: string
): Promise<void> {
  if (spec.mode !== defaultMode(spec.variant)) return
  for (const name of listOperations(spec.variant)) {
    assert.equal(typeof operations?.[name], 'function', `the model lists "${name}", so "operations" has this function`)
  }
  if (!operations?.speak) return
  for (const response_format of ['wav', 'mp3']) {
    await steps.answered(corral, '/v1/audio/speech', { model, input: 'Hello there', response_format })
  }
}

/** Checks vectors and scores, if the engine supports them. */
export async function checkLists(steps: Steps, engine: Engine): Promise<void> {
  const { signal } = new AbortController()
  if (engine.embed) {
    const inputs = ['one', 'two words', 'three words here']
    const reply = await steps.run('embed', () => engine.embed!(inputs, { signal }))
    assert.ok(Array.isArray(reply?.vectors), `embed returns { vectors, promptTokens }, not ${shown(reply)}`)
    const { vectors, promptTokens } = reply
    assert.equal(vectors.length, inputs.length, `embed returns a vector for each input, not ${vectors.length} for 3`)
    for (const vector of vectors) {
      const isList = Array.isArray(vector) || (vector as unknown) instanceof Float32Array
      assert.ok(isList, `a vector is a list of numbers, not ${shown(vector)}`)
      assert.ok(vector.length > 0 && vector.length === vectors[0]!.length, 'all vectors have the same length')
      assert.ok([...vector].every(Number.isFinite), 'vectors have finite numbers')
    }
    assert.ok(isCount(promptTokens), `promptTokens is a count of tokens, not ${shown(promptTokens)}`)
  }
  if (engine.rerank) {
    const reply = await steps.run('rerank', () => engine.rerank!('one', ['a', 'b', 'c'], { signal }))
    assert.ok(Array.isArray(reply?.scores), `rerank returns { scores, promptTokens }, not ${shown(reply)}`)
    const { scores, promptTokens } = reply
    assert.deepEqual(scores.map(({ index }) => index).sort(), [0, 1, 2], 'rerank returns a score for each document')
    assert.ok(
      scores.every(({ score }) => Number.isFinite(score)),
      'scores are finite numbers'
    )
    assert.ok(isCount(promptTokens), `promptTokens is a count of tokens, not ${shown(promptTokens)}`)
  }
}

/** Checks that another engine differs from the running ones, and ends when it is stopped. */
export async function checkEnd(steps: Steps, provider: EngineProvider, running: readonly Engine[]): Promise<void> {
  const { spec } = running[0]!
  const waiting = { signal: new AbortController().signal }
  const estimate = await steps.run('estimate', () => provider.estimate?.(spec, waiting))
  const engine = await steps.run('start', () => provider.start(spec, waiting, estimate))
  checkFacts(engine, provider)
  const ids = running.map(({ id }) => id)
  assert.ok(!ids.includes(engine.id), `each engine has its own id, but "${engine.id}" belongs to another engine`)
  await steps.run('stop', () => engine.stop())
  const exit = await steps.run('"exited" after stop', () => engine.exited)
  assert.equal(exit?.expected, true, 'an engine that was stopped has exited as expected')
}
