import { EventEmitter } from 'node:events'
import type { FastifyReply } from 'fastify'
import t from 'tap'
import { dropOldest } from '../../core/answers/full-context.ts'
import { createAnswers } from '../../core/answers/pipeline.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { keylessCaller } from '../../core/contracts/callers.ts'
import type { Delta } from '../../core/contracts/engines.ts'
import type { Hooks } from '../../core/contracts/hooks.ts'
import type { Lease, Scheduler } from '../../core/contracts/leases.ts'
import type { Catalog } from '../../core/contracts/models.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { RequestRecord } from '../../core/http/request-record.ts'
import type { OverflowPolicy } from '../../core/models/options.ts'
import { readCases } from '../support/fixture.ts'

type Message = { role: string; content?: string; tool_calls?: object[] }

const TEXT = 'x'.repeat(100)
const of = (role: string, content = TEXT): Message => ({ role, content })
const call = (): Message => ({ role: 'assistant', content: TEXT, tool_calls: [{}] })
/** Messages as one letter each: system, user, assistant, call of a tool, tool. */
const conversation = (letters: string): Message[] =>
  [...letters].map(letter =>
    letter === 'c' ? call() : of({ s: 'system', u: 'user', a: 'assistant', t: 'tool', d: 'developer' }[letter]!)
  )
const roles = (messages: Message[] | undefined) =>
  messages?.map(({ role, tool_calls }) => (tool_calls ? 'c' : role[0])).join('')

t.test('dropOldest drops the oldest turns that fit the room', async t => {
  // The conversation, its tokens, the room, and the remaining conversation.
  const cases: [string, number, number, string | undefined][] = readCases('core-cases.yaml', 'dropOldest')
  for (const [given, tokens, room, left] of cases) {
    t.equal(roles(dropOldest(conversation(given), tokens, room)), left, `${given}, ${tokens} tokens into ${room}`)
  }
  const images = [
    { role: 'user', content: [{ type: 'image_url', image_url: { url: TEXT } }] },
    of('assistant'),
    of('user', 'What was it?')
  ]
  t.same(dropOldest(images, 300, 200), [images[2]])
})

t.test('shorterConversation returns a shorter conversation with each attempt', async t => {
  for (const letters of ['suauauauauauauau', 'uctctctctctctct', 'uauctctauctaau']) {
    let messages = conversation(letters)
    for (let tries = 0; ; tries++) {
      const fewer = dropOldest(messages, messages.length * 100, messages.length * 100)
      if (!fewer) break
      t.ok(fewer.length < messages.length)
      t.equal(fewer.at(-1), messages.at(-1), 'the last message stays')
      messages = fewer
      if (tries > 50) return t.fail('no end')
    }
  }
})

/** An engine that counts a hundred tokens per message. */
function engineOf(contextSize: number) {
  const received: number[] = []
  const engine = {
    provider: 'test',
    async chat({ messages }: { messages: Message[] }, { take }: { take: (deltas: Delta[]) => void }) {
      received.push(messages.length)
      const tokens = messages.length * 100
      if (tokens >= contextSize) {
        throw new CorralError('context_exceeded', 'too long', {
          details: { n_prompt_tokens: tokens, n_ctx: contextSize }
        })
      }
      take([{ content: 'x', finish: 'stop' }])
    }
  }
  const variant = { publicName: 'a/b', metadata: {}, model: { owner: 'a', name: 'b' }, key: 'a/b:c' }
  const lease = { engine, variant, signal: new AbortController().signal } as unknown as Lease
  const scheduler = { withLease: (_: unknown, use: (lease: Lease) => unknown) => use(lease) } as unknown as Scheduler
  return { scheduler, received }
}

t.test('a conversation is sent again, shorter, until it fits', async t => {
  const body = { messages: conversation('suauauauauau'), max_tokens: 10 }
  const ask = async (scheduler: Scheduler, overflow: OverflowPolicy = 'drop_oldest') => {
    const headers: Record<string, string> = {}
    const reply = {
      raw: new EventEmitter(),
      request: { headers: {}, caller: keylessCaller('127.0.0.1'), body, record: new RequestRecord(() => {}) },
      server: { drain: { admit() {} } },
      log: { info() {} },
      header(name: string, value: string) {
        headers[name] = value
      },
      removeHeader() {}
    } as unknown as FastifyReply
    const model = { owner: 'a', name: 'b' }
    const question = {
      operation: 'chat',
      body,
      lease: { model, options: {} },
      variant: { model, key: 'a/b:c', metadata: {}, origin: { kind: 'pull' } } as unknown as StoredVariant,
      overflow
    } as const
    const hooks = {
      hasRequestFilters: () => false,
      hasEventFilters: () => false,
      leased: () => undefined
    } as unknown as Hooks
    const config = {
      limits: { num_parallel: 1, max_tokens: 10, keep_alive: -1, prompts: 1, n: 1 },
      models: {},
      defaults: {}
    } as unknown as CoreConfig
    const deps = {
      scheduler,
      hooks,
      engines: { providerOf: () => undefined },
      surface: 'test',
      config,
      catalog: {} as Catalog
    }
    await createAnswers(deps).whole(reply, question, () => ({ add() {} }))
    return headers['x-corral-dropped-messages']
  }

  const roomy = engineOf(2000)
  t.equal(await ask(roomy.scheduler), undefined)
  t.same(roomy.received, [12])

  const tight = engineOf(650)
  t.equal(await ask(tight.scheduler), '6')
  t.same(tight.received, [12, 6])
  t.equal(body.messages.length, 12, 'the request does not change')

  await t.rejects(ask(engineOf(150).scheduler), {
    code: 'context_exceeded',
    details: { n_prompt_tokens: 200, n_ctx: 150 }
  })

  const strict = engineOf(650)
  await t.rejects(ask(strict.scheduler, 'error'), {
    code: 'context_exceeded',
    details: { n_prompt_tokens: 1200, n_ctx: 650 }
  })
  t.same(strict.received, [12])
})
