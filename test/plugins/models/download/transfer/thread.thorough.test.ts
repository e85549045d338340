import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { CorralError } from '../../../../../core/errors.ts'
import { partialBytes } from '../../../../../plugins/models/download/transfer/part-file.ts'
import {
  type TransferOptions,
  type TransferRequest,
  TransferThread
} from '../../../../../plugins/models/download/transfer/transfers.ts'
import { sampleBytes, sha256, startByteServer } from '../../../../support/byte-server.ts'
import { thorough } from '../../../../support/thorough.ts'

const MiB = 1024 * 1024
const content = sampleBytes(16 * MiB)

function make(t: Test, options: Partial<TransferOptions> = {}) {
  const transfers = new TransferThread({
    connections: 8,
    connectionsPerFile: 4,
    bandwidthLimit: 0,
    stallTimeout: 5000,
    ...options
  })
  t.teardown(() => transfers.close())
  return transfers
}

function request(url: string, folder: string, names: string[], more: Partial<TransferRequest> = {}): TransferRequest {
  return {
    identity: 'test@1',
    files: names.map(name => ({
      path: name,
      target: join(folder, name),
      size: content.length,
      sha256: sha256(content)
    })),
    locate: async () => ({ url: `${url}/file`, headers: {} }),
    signal: new AbortController().signal,
    onProgress: () => {},
    ...more
  }
}

t.test('the transfer thread downloads several files at once and reports progress', async t => {
  const server = await startByteServer({ '/file': content }, () => ({ rate: 8 * MiB }))
  t.teardown(() => server.close())
  const folder = t.testdir()
  const names = ['a', 'b', 'c', 'd', 'e', 'f']
  const last = new Map<number, number>()
  let reports = 0
  const began = performance.now()
  const done = await make(t).run(
    request(server.url, folder, names, {
      onProgress(index, completed, total) {
        reports += 1
        t.ok(completed <= total && total === content.length)
        last.set(index, completed)
      }
    })
  )
  t.equal(done.length, names.length)
  // The server may still see connections that were replaced.
  t.ok(server.state.mostOpen <= 8 + 4, `${server.state.mostOpen} connections`)
  for (const [index, name] of names.entries()) {
    t.ok(readFileSync(join(folder, name)).equals(content))
    t.equal(last.get(index), content.length)
  }
  const seconds = (performance.now() - began) / 1000
  t.ok(reports <= names.length * (seconds * 10 + 2), `${reports} reports in ${seconds} s`)
  t.strictSame(readdirSync(folder).sort(), names)
})

t.test('a prepared thread serves the run', async t => {
  const server = await startByteServer({ '/file': content })
  t.teardown(() => server.close())
  let started = 0
  const count = () => started++
  process.on('worker', count)
  t.teardown(() => process.off('worker', count))
  const transfers = make(t)
  transfers.prepare()
  transfers.prepare()
  await sleep(0)
  t.equal(started, 1)
  await transfers.run(request(server.url, t.testdir(), ['a']))
  t.equal(started, 1)
  await transfers.close()
  transfers.prepare()
  await sleep(0)
  t.equal(started, 1, 'none after the end')
})

t.test('an abort closes all connections and keeps partial data', async t => {
  const server = await startByteServer({ '/file': content }, () => ({ rate: 2 * MiB }))
  t.teardown(() => server.close())
  const folder = t.testdir()
  const controller = new AbortController()
  const transfers = make(t)
  const reason = new Error('paused')
  const running = transfers.run(
    request(server.url, folder, ['a'], {
      signal: controller.signal,
      onProgress: (_, completed) => completed > 2 * MiB && controller.abort(reason)
    })
  )
  await t.rejects(running, reason)
  while (server.state.open > 0) await new Promise(resolve => setTimeout(resolve, 10))
  t.ok((await partialBytes(join(folder, 'a'))) > 2 * MiB)
})

t.test('errors of locate are passed on unchanged', async t => {
  const folder = t.testdir()
  const gated = new CorralError('hub_forbidden', 'agree to the terms')
  const locate = async () => {
    throw gated
  }
  await t.rejects(make(t).run(request('', folder, ['a'], { locate })), gated)
  await t.rejects(
    make(t).run(
      request('', folder, ['a'], { locate: async () => ({ url: 'http://127.0.0.1:1/x', headers: { 'bad name': '' } }) })
    )
  )
})

t.test('close ends running transfers', async t => {
  const server = await startByteServer({ '/file': content }, () => ({ rate: MiB }))
  t.teardown(() => server.close())
  const transfers = make(t)
  const folder = t.testdir()
  const running = t.rejects(transfers.run(request(server.url, folder, ['a'])), { code: 'shutting_down' })
  while (server.state.sent < 100_000) await new Promise(resolve => setTimeout(resolve, 10))
  await transfers.close()
  await running
  await t.rejects(transfers.run(request(server.url, folder, ['a'])), { code: 'shutting_down' })
  t.ok((await partialBytes(join(folder, 'a'))) > 0)
})

t.test('the bandwidth limit applies to all files together', async t => {
  const server = await startByteServer({ '/file': content })
  t.teardown(() => server.close())
  const folder = t.testdir()
  const limit = 8 * MiB
  const began = performance.now()
  await make(t, { bandwidthLimit: limit }).run(request(server.url, folder, ['a', 'b']))
  const seconds = (performance.now() - began) / 1000
  const least = (2 * content.length) / limit
  // A burst may deliver up to a quarter of a second's worth.
  t.ok(seconds >= least - 0.3, `${seconds} s instead of at least ${least} s`)
  const free = performance.now()
  await make(t).run(request(server.url, folder, ['c', 'd']))
  t.ok((performance.now() - free) / 1000 < seconds, 'without a limit it is faster')
})

t.test("memory use does not grow with the file's size", thorough, async t => {
  const program = fileURLToPath(new URL('../../../../support/byte-server-child.js', import.meta.url))
  const transfers = make(t)
  const folder = t.testdir()
  /** Returns this process's maximum memory while it downloads a file of this size from another process. */
  async function mostMemory(bytes: number): Promise<number> {
    const server = fork(program, [String(bytes)])
    const [{ url, ...file }] = (await once(server, 'message')) as [{ url: string; size: number; sha256: string }]
    let most = 0
    const watch = setInterval(() => {
      most = Math.max(most, process.memoryUsage.rss())
    }, 20)
    const target = join(folder, String(bytes))
    await transfers.run(request(url, folder, [], { files: [{ path: 'file', target, ...file }] }))
    clearInterval(watch)
    server.disconnect()
    return most
  }
  // The first transfer starts the threads.
  const few = await mostMemory(64 * MiB)
  const many = await mostMemory(640 * MiB)
  t.ok(many - few < 32 * MiB, `${Math.round((many - few) / MiB)} MiB more for a file of ten times the size`)
})
