import assert from 'node:assert/strict'
import type { AnswerSink, Delta, Engine, EngineProvider, TokenUsage } from '../core/contracts/engines.ts'
import type { Steps } from './steps.ts'

const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0

/** Pieces that an engine may still send after its request was aborted, because they were already on their way. */
const MAX_LATE_PIECES = 2

export function checkFacts(engine: Engine, provider: EngineProvider): void {
  assert.ok(typeof engine.id === 'string' && engine.id !== '', 'an engine has an id')
  assert.equal(engine.provider, provider.name, 'an engine names its provider')
  assert.ok(isCount(engine.slots) && engine.slots > 0, `an engine has at least one slot, not ${engine.slots}`)
  assert.ok(isCount(engine.contextSize), `contextSize is a count of tokens, not ${engine.contextSize}`)
  assert.equal(typeof engine.exited?.then, 'function', 'an engine has the promise "exited"')
  assert.ok(Array.isArray(engine.logTail()), 'logTail returns a list of lines')
}

function checkUsage(usage: TokenUsage): void {
  for (const name of ['promptTokens', 'cachedTokens', 'completionTokens'] as const) {
    assert.ok(isCount(usage[name]), `usage.${name} is a count of tokens, not ${usage[name]}`)
  }
  assert.ok(usage.cachedTokens <= usage.promptTokens, 'usage.cachedTokens is part of usage.promptTokens')
}

/** A sink that checks what it gets. @param onPiece called with each piece of an answer */
function checkedSink(signal: AbortSignal, onPiece: () => void = () => {}) {
  const ended = new Set<number>()
  const sink: AnswerSink = {
    signal,
    take(deltas: readonly Delta[]) {
      assert.ok(Array.isArray(deltas), 'sink.take gets a list of deltas')
      for (const { choice = 0, content, thinking, toolCalls, finish, usage } of deltas) {
        const hasText = Boolean(content || thinking || toolCalls?.length)
        assert.ok(!(ended.has(choice) && hasText), `choice ${choice} continues after its "finish"`)
        if (usage) checkUsage(usage)
        if (hasText) onPiece()
        if (finish === undefined) continue
        assert.ok(!ended.has(choice), `choice ${choice} has "finish" twice`)
        assert.ok(['stop', 'length', 'tool_calls'].includes(finish), `"finish" is "${finish}"`)
        ended.add(choice)
      }
      return undefined
    }
  }
  return { sink, ended }
}

/** Checks the answers of a running engine, without corral in between. */
export async function checkAnswers(steps: Steps, engine: Engine): Promise<void> {
  assert.ok(engine.chat, 'an engine has "chat"')
  const request = (content: string) => ({ messages: [{ role: 'user', content }], temperature: 0, max_tokens: 200 })
  // An engine may mistake an assertion error in the sink for a disconnect, so the error is remembered.
  const asked = async (name: string, content: string, signal: AbortSignal, onPiece?: () => void) => {
    const { sink, ended } = checkedSink(signal, onPiece)
    let failure: unknown
    const guarded: AnswerSink = {
      ...sink,
      take(deltas) {
        try {
          return sink.take(deltas)
        } catch (error) {
          failure ??= error
          throw error
        }
      }
    }
    const outcome = await steps.run(name, () =>
      engine.chat!(request(content), guarded).then(
        () => undefined,
        error => ({ error })
      )
    )
    if (failure) throw failure
    return { outcome, ended }
  }
  const { outcome, ended } = await asked('chat', 'Hello there', new AbortController().signal)
  if (outcome) throw outcome.error
  assert.deepEqual([...ended], [0], 'an answer ends with one "finish" for each choice')

  const long = Array.from({ length: 200 }, (_, at) => `word${at}`).join(' ')
  const controller = new AbortController()
  let late = 0
  await asked('chat after its signal was aborted', long, controller.signal, () => {
    if (controller.signal.aborted) late++
    controller.abort(new Error('the client has disconnected'))
  })
  assert.ok(late <= MAX_LATE_PIECES, `an aborted answer ends; ${late} pieces came after the abort`)
  let early = 0
  const before = await asked('chat with an aborted signal', long, AbortSignal.abort(new Error('gone')), () => early++)
  assert.ok(before.outcome || early === 0, 'an answer whose signal is aborted before its start is not generated')
}

/** Checks vectors and scores, if the engine supports them. */
export async function checkLists(steps: Steps, engine: Engine): Promise<void> {
  const { signal } = new AbortController()
  if (engine.embed) {
    const inputs = ['one', 'two words', 'three words here']
    const { vectors, promptTokens } = await steps.run('embed', () => engine.embed!(inputs, { signal }))
    assert.equal(vectors.length, inputs.length, `embed returns a vector for each input, not ${vectors.length} for 3`)
    for (const vector of vectors) {
      assert.ok(vector.length > 0 && vector.length === vectors[0]!.length, 'all vectors have the same length')
      assert.ok([...vector].every(Number.isFinite), 'vectors have finite numbers')
    }
    assert.ok(isCount(promptTokens), `promptTokens is a count of tokens, not ${promptTokens}`)
  }
  if (engine.rerank) {
    const { scores, promptTokens } = await steps.run('rerank', () => engine.rerank!('one', ['a', 'b', 'c'], { signal }))
    assert.deepEqual(scores.map(({ index }) => index).sort(), [0, 1, 2], 'rerank returns a score for each document')
    assert.ok(
      scores.every(({ score }) => Number.isFinite(score)),
      'scores are finite numbers'
    )
    assert.ok(isCount(promptTokens), `promptTokens is a count of tokens, not ${promptTokens}`)
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
