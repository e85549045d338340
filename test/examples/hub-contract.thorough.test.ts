import { createHash } from 'node:crypto'
import { createServer, type ServerResponse } from 'node:http'
import t, { type Test } from 'tap'
import type { Hub } from '../../core/contracts/hubs.ts'
import type { PluginContext, PluginDefinition } from '../../core/plugins/plugin.ts'
import webHub from '../../examples/web-hub/index.ts'
import { hubContract } from '../../testing/index.ts'
import { listen } from '../support/listen.ts'

const timeout = 5000
const never = () => new Promise<never>(() => {})

const thrower = (thrown: unknown) => async () => {
  throw thrown
}

/** A server with two models, one of them gated, and the example hub that lists them correctly. */
async function hubServer(t: Test): Promise<string> {
  const files: Record<string, string> = { 'model.gguf': 'GGUF and more', 'notes.txt': 'some words' }
  const server = createServer(({ url = '', headers }, reply: ServerResponse) => {
    const [, id, name] = /^\/(owner\/\w+)\/(.+)$/.exec(url) ?? []
    if (id === 'owner/gated') return reply.writeHead(403).end()
    const text = id === 'owner/model' ? files[name!] : undefined
    if (text === undefined) return reply.writeHead(404).end()
    const [, begin, end] = /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? '') ?? []
    if (begin === undefined) return reply.writeHead(200, { 'content-length': text.length }).end(text)
    const part = text.slice(Number(begin), Number(end) + 1)
    reply
      .writeHead(206, { 'content-range': `bytes ${begin}-${end}/${text.length}`, 'content-length': part.length })
      .end(part)
  })
  return `http://127.0.0.1:${await listen(t, server)}`
}

/** The example hub with a second file, digests and a fault. */
function faultyHub(mutant: (hub: Hub, context: PluginContext) => Partial<Hub>): PluginDefinition {
  const setup: PluginDefinition['setup'] = (context, options) => {
    const addHub = (good: Hub) => {
      const hub: Hub = {
        ...good,
        async repository(request, waiting) {
          const found = await good.repository(request, waiting)
          const sha256 = createHash('sha256').update('GGUF and more').digest('hex')
          return {
            ...found,
            files: [
              { ...found.files[0]!, sha256 },
              { path: 'notes.txt', size: 10 }
            ]
          }
        }
      }
      return context.service('downloads').addHub({ ...hub, ...mutant(hub, context) })
    }
    return webHub.setup({ ...context, service: (() => ({ addHub })) as unknown as PluginContext['service'] }, options)
  }
  return { ...webHub, setup }
}

t.test('the hub contract names the fault of each faulty hub and does not hang', async t => {
  const address = await hubServer(t)
  const options = { id: 'owner/model', absent: 'owner/none', config: `web-hub: { address: '${address}' }`, timeout }
  await hubContract(webHub, { ...options, gated: 'owner/gated' })
  await hubContract(
    faultyHub(() => ({})),
    { ...options, gated: 'owner/gated' }
  )
  const listing =
    (change: (file: { path: string; size: number | undefined }, at: number) => object) =>
    (hub: Hub): Partial<Hub> => ({
      async repository(request, waiting) {
        const found = await hub.repository(request, waiting)
        return { ...found, files: found.files.map((file, at) => ({ ...file, ...change(file, at) })) }
      }
    })
  const codes = (wrong: Record<string, string>) => (hub: Hub, context: PluginContext) => ({
    repository: (request: Parameters<Hub['repository']>[0], waiting: object) =>
      hub.repository(request, waiting).catch(error => {
        throw wrong[error.code] ? context.error(wrong[error.code] as 'internal', 'Wrong.') : error
      })
  })
  type Found = Awaited<ReturnType<Hub['repository']>>
  const changed =
    (hub: Hub, change: (found: Found) => object | undefined): Hub['repository'] =>
    async (request, waiting) =>
      change(await hub.repository(request, waiting)) as Found
  const bare =
    (hub: Hub): Hub['locate'] =>
    async (...values) => {
      const { headers: _, ...place } = await hub.locate(...values)
      return place as never
    }
  const failing = () => {
    throw new Error('no idea')
  }
  const withoutGated =
    (hub: Hub): Hub['repository'] =>
    async (request, waiting) => {
      const { gated: _, ...found } = await hub.repository(request, waiting)
      return found as never
    }
  const deep = faultyHub(hub => ({
    repository: ({ id }, waiting) => hub.repository({ id: id.replace('/deep', '') }, waiting),
    locate: (found, ...values) => hub.locate({ ...found, id: found.id.replace('/deep', '') }, ...values)
  }))
  const unnamed = { ...options, id: 'owner/deep/model' }
  await t.rejects(hubContract(deep, unnamed), { message: /needs "parse".*"owner\/deep\/model"/ }, 'has long names')
  const table: [title: string, mutant: Parameters<typeof faultyHub>[0], message: RegExp][] = [
    ['lists a wrong size', listing((_, at) => (at === 0 ? { size: 5 } : {})), /"model\.gguf" is listed as 5 bytes/],
    [
      'locates another file',
      hub => ({ locate: (repository, _, signal) => hub.locate(repository, { path: 'notes.txt', size: 10 }, signal) }),
      /another digest|located at|listed as/
    ],
    ['lists a wrong digest', listing((_, at) => (at === 0 ? { sha256: '0'.repeat(64) } : {})), /another digest/],
    ['lists a path twice', listing(() => ({ path: 'model.gguf' })), /"model\.gguf" is listed twice/],
    ['lists a path outside', listing(() => ({ path: '../model.gguf' })), /is relative/],
    ['takes a prefix', () => ({ prefixes: ['hf:'] }), /the prefix "hf:": it belongs to the hub "huggingface"/],
    ['reports a broken line as absence', codes({ hub_unreachable: 'repo_not_found' }), /as "hub_unreachable", not/],
    ['reports a refusal as absence', codes({ hub_forbidden: 'repo_not_found' }), /reported as "hub_forbidden", not/],
    ['never says "gated"', hub => ({ repository: withoutGated(hub) }), /whether it is "gated"/],
    ['lets nobody know', codes({ repo_not_found: 'hub_unreachable' }), /"repo_not_found", not "hub_unr/],
    ['ignores the signal', hub => ({ repository: request => hub.repository(request, {}) }), /is aborted|did not end/],
    ['lists no size', listing(() => ({ size: Number.NaN })), /the size of "model\.gguf" is a count of bytes/],
    ['lists nothing', hub => ({ repository: changed(hub, () => undefined) }), /returns an object, not undefined/],
    ['lists no files', hub => ({ repository: changed(hub, ({ files: _, ...r }) => r) }), /lists its files/],
    [
      'lists too much',
      hub => ({ repository: changed(hub, found => ({ ...found, files: Array(100_001).fill(found.files[0]) })) }),
      /at most 100000 files, not 100001/
    ],
    ['has no revision', hub => ({ repository: changed(hub, ({ revision: _, ...r }) => r) }), /has a revision/],
    [
      'stores credentials',
      hub => ({ repository: changed(hub, found => ({ ...found, address: 'http://me:secret@example.org/' })) }),
      /has no credentials/
    ],
    ['throws a text', () => ({ repository: thrower('gone') }), /repository of owner\/model: it throws "gone"/],
    ['has no title', () => ({ title: undefined as never }), /human-readable title/],
    ['locates nothing', () => ({ locate: async () => undefined as never }), /url, headers } .*, not undefined/],
    ['locates a path', () => ({ locate: async () => ({ url: '/model', headers: {} }) }), /a whole address, not/],
    ['has no headers', hub => ({ locate: bare(hub) }), /"headers" of the location of "model\.gguf"/],
    ['fails to parse', () => ({ parse: failing }), /"parse" reads the name "owner\/model"/],
    ['parses nothing', () => ({ parse: () => undefined }), /"parse" reads the name "owner\/model"/],
    ['parses all', () => ({ parse: () => ({ id: 'owner/model', name: 'a/b' }) }), /"owner\/none" as the model/],
    ['never finds', () => ({ search: never }), /search: this did not end/],
    ['finds too much', () => ({ search: async () => Array(1000).fill({ id: 'a/b' }) }), /at most 5 models/],
    ['finds oddly', () => ({ search: async () => [{ id: 5 } as never] }), /a match has id, tasks, .*\{"id":5\}/],
    ['never lists', () => ({ repository: never }), /repository of owner\/model: this did not end/],
    ['never locates', () => ({ locate: never }), /locate model\.gguf: this did not end/]
  ]
  for (const [title, mutant, message] of table) {
    await t.rejects(hubContract(faultyHub(mutant), options), { message }, title)
  }
})
