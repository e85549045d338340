import type { ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { until } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'
import { checkCommands, corral, newHome } from './command.ts'
import { planReply, pullReply } from './records.ts'
import { event, refuse, scriptedServer } from './scripted-server.ts'
import { CTRL_C, onTerminal } from './terminal.ts'

// The servers of these tests answer slowly.
t.jobs = 3

const MB = 1e6
const REFERENCE = 'hf:Qwen/Qwen3-GGUF'
const PULLING = {
  status: `pulling ${REFERENCE}`,
  model: 'Qwen/Qwen3-GGUF',
  label: 'Q8_0',
  reason: 'It is the best that fits.',
  size: 600 * MB,
  warnings: ['Memory is \x1b[2Jscarce.']
}
const SUCCESS = event({ status: 'success' })
const file = (digest: string, completed: number, total: number) =>
  event({ status: `downloading ${digest}`, digest, completed: completed * MB, total: total * MB })

/** Adds 1 MB every 10 ms to a file of 600 MB. */
async function grow(reply: ServerResponse, from: number, to: number): Promise<void> {
  for (let amount = from; amount <= to && !reply.destroyed; amount++) {
    reply.write(file('q8.gguf', amount, 600))
    await sleep(10)
  }
}

t.test('pull prints plain lines without a terminal', async t => {
  const server = await scriptedServer(t, {
    'POST /api/pull': async reply => {
      reply.write(': heartbeat\n\n')
      reply.write(event(PULLING))
      await grow(reply, 0, 599)
      await sleep(1000)
      reply.write(file('q8.gguf', 600, 600))
      reply.end(SUCCESS)
    }
  })
  const began = performance.now()
  const pulled = await corral(['pull', REFERENCE, '--as', 'me/qwen', ...server.flags], { home: newHome(t) })
  const seconds = (performance.now() - began) / 1000
  t.match(pulled, { code: 0, stdout: '' })
  const lines = pulled.stderr.trimEnd().split('\n')
  t.equal(lines.shift(), 'pulling Qwen/Qwen3-GGUF:Q8_0 (600 MB)')
  t.equal(lines.shift(), '  It is the best that fits.')
  t.equal(lines.shift(), 'warning: Memory is [2Jscarce.')
  t.equal(lines.shift(), 'starting the download of Qwen/Qwen3-GGUF:Q8_0')
  t.match(lines.pop(), /^pulled Qwen\/Qwen3-GGUF:Q8_0 \(600 MB\) in \d+\.\d s\. Try it with: corral run Qwen/)
  t.ok(lines.length >= 1 && lines.length <= 2 + seconds / 5, `a line every five seconds: ${lines.join('\n')}`)
  t.match(lines[0], /^Qwen\/Qwen3-GGUF:Q8_0: \d+%, \d+ MB of 600 MB, \d+ MB\/s, \d+ s left$/)
  t.same(server.bodies('POST /api/pull'), [{ model: REFERENCE, as: 'me/qwen', stream: true }])
})

/** Errors after which nothing is kept, or that say so themselves, except the last one. */
const DAMAGES = [
  [
    'checksum_mismatch',
    "q8.gguf is not what the hub says. Its partial data were removed; pull again, and it's fetched."
  ],
  ['unsupported_capability', 'It cannot be run: it is cut off. Cancel the pull.'],
  ['hub_unreachable', 'q8.gguf could not be fetched. Pull again to continue; what was fetched is kept.'],
  ['hub_forbidden', 'Agree to its terms first.']
] as const

t.test('pull reports success, refusals and broken downloads, and advice about the part that is kept once', async t => {
  const began = (reply: ServerResponse) => reply.write(event(PULLING) + file('q8.gguf', 300, 600))
  const server = await scriptedServer(t, {
    'POST /api/pull': (reply, _body, count) => {
      if (count === 1) return reply.end(event({ ...PULLING, present: true }) + SUCCESS)
      if (count === 2) return refuse(reply, 404, 'repo_not_found', 'There is no "Qwen/Qwen3" at Hugging Face.')
      if (count === 3) return refuse(reply, 507, 'insufficient_storage', 'The disk is too small.')
      began(reply)
      if (count === 4) reply.end(event({ error: 'The bytes are wrong.', errorCode: 502, code: 'checksum_mismatch' }))
      if (count === 5) reply.end(event({ error: 'The pull was cancelled.', errorCode: 409, code: 'pull_cancelled' }))
      if (count === 6) setTimeout(() => reply.destroy(), 300)
      if (count === 7) reply.end()
      if (count < 8) return
      const [code, error] = DAMAGES[count - 8]!
      reply.end(event({ status: `error: ${error}`, error, errorCode: 502, code }))
    }
  })
  const home = newHome(t)
  const pull = () => corral(['pull', REFERENCE, ...server.flags], { home })
  const kept = new RegExp(`The downloaded part is kept; continue with: corral pull ${REFERENCE}\n$`)
  t.match(await pull(), { code: 0, stderr: /^Qwen\/Qwen3-GGUF:Q8_0 is already downloaded\. .*corral run/ })
  t.match(await pull(), { code: 4, stdout: '', stderr: 'error: There is no "Qwen/Qwen3" at Hugging Face.\n' })
  t.match(await pull(), { code: 1, stderr: 'error: The disk is too small.\n' }, 'nothing was downloaded')
  const wrong = await pull()
  t.match(wrong, { code: 1, stderr: /^error: The bytes are wrong\. /m })
  t.match(wrong.stderr, kept)
  t.match(await pull(), { code: 1, stderr: /^error: The pull was cancelled\.\n$/m }, 'no part is kept')
  const cut = await pull()
  t.match(cut, { code: 1, stderr: /closed before the reply/ })
  t.match(cut.stderr, kept)
  const silent = await pull()
  t.match(silent, { code: 1, stderr: /ended the download of .* without a result/ })
  t.match(silent.stderr, kept)
  for (const [code, error] of DAMAGES) {
    const { stderr } = await pull()
    t.ok(stderr.includes(error), code)
    t.equal(stderr.includes('The downloaded part is kept'), code === 'hub_forbidden', code)
  }
})

t.test('pull pauses the download at Ctrl-C', thorough, async t => {
  const server = await scriptedServer(t, {
    'POST /api/pull': reply => {
      reply.write(event(PULLING) + file('q8.gguf', 300, 600))
    },
    'POST /api/pulls/pause': (reply, _body, count) => {
      const record = { state: 'downloading', detached: false, completed: 330 * MB, total: 600 * MB }
      if (count === 1) reply.end(JSON.stringify({ ...record, state: 'paused' }))
      if (count === 2) reply.end(JSON.stringify({ ...record, detached: true }))
      if (count === 3) reply.end(JSON.stringify(record))
      if (count === 4) refuse(reply, 404, 'model_not_found', 'There is no pull.')
      if (count === 5) refuse(reply, 500, 'internal_error', 'That went wrong.')
    }
  })
  const home = newHome(t)
  const interrupt = () => corral(['pull', REFERENCE, ...server.flags], { home, interruptAt: '%,' })
  const interrupted = await interrupt()
  t.match(interrupted, { code: 130, stdout: '' })
  t.match(
    interrupted.stderr,
    /\npaused at 55% \(330 MB\)\. The downloaded part is kept; continue with: corral pull hf:Qwen\/Qwen3-GGUF\n$/
  )
  await until('the server is not affected', server.left)
  for (const said of [
    /\nleft at 55% \(330 MB\)\. The server continues the download\. See "corral pulls"/,
    /\nleft at 55% \(330 MB\)\. The server continues the download for another client\. .*corral pulls pause Qwen\/Qwen3-GGUF:Q8_0/,
    /\nleft\. The download has already ended/,
    /\nleft\. The server did not report the state of the download/
  ]) {
    t.match(await interrupt(), { code: 130, stdout: '', stderr: said })
  }
  t.same(server.bodies('POST /api/pulls/pause')[0], { model: 'Qwen/Qwen3-GGUF:Q8_0', unless_shared: true })
})

t.test('pull draws progress bars on a terminal', async t => {
  let finish = async () => {}
  const server = await scriptedServer(t, {
    'POST /api/pull': async (reply, _body, count) => {
      reply.write(event(PULLING))
      if (count > 1) return void (await grow(reply, 300, 600))
      const shards = Array.from({ length: 20 }, (_, index) => `q8-${index + 1}.gguf`)
      for (const shard of shards) reply.write(file(shard, 0, 30))
      reply.write(file('q8-1.gguf', 15, 30))
      finish = async () => {
        for (const shard of shards) reply.write(file(shard, 30, 30))
        await sleep(600)
        reply.write(event({ status: 'storing' }))
        await sleep(600)
        reply.end(SUCCESS)
      }
    },
    'POST /api/pulls/pause': reply =>
      reply.end(JSON.stringify({ state: 'paused', completed: 330 * MB, total: 600 * MB }))
  })
  const home = newHome(t)
  const terminal = onTerminal(t, ['pull', REFERENCE, ...server.flags], home)
  await terminal.sees(/0 of 20 files done.* 2% /s)
  const lines = await terminal.lines()
  t.match(lines.slice(0, 3), [/^pulling Qwen/, /best that fits/, /^warning: Memory is \[2Jscarce\.$/])
  t.match(lines.slice(3), [
    /^q8-1\.gguf +█+░+ +50% +15 MB \/ {2}30 MB$/,
    '0 of 20 files done',
    /░ +2% +15 MB \/ 600 MB$/
  ])
  const finished = finish()
  await terminal.sees('20 of 20 files done')
  await terminal.sees('storing')
  await finished
  t.equal(await terminal.ended(), 0)
  t.match(
    (await terminal.lines()).slice(3).filter(Boolean),
    [/^pulled Qwen.* \(600 MB\) in .* Try it with:$/, 'corral run Qwen/Qwen3-GGUF:Q8_0'],
    'no bars remain'
  )
  t.equal(terminal.screen().includes('\x1b[?25h'), true, 'the cursor is restored')

  const again = onTerminal(t, ['pull', REFERENCE, ...server.flags], home, { columns: 50, rows: 24 })
  await again.sees('q8.gguf')
  t.match(again.screen(), /q8\.gguf +█+░+ +5\d%/, 'a bar starts at the existing amount')
  await again.sees(/\d MB\/s +\d+ s left/)
  const speed = Number(/(\d+) MB\/s/.exec(again.screen())?.[1])
  t.ok(speed > 0 && speed < 150, `existing bytes are not speed: ${speed} MB/s`)
  await again.press(CTRL_C)
  t.equal(await again.ended(), 130)
  t.match(again.screen(), /paused at 55% .*corral\s+pull\s+hf:Qwen/s)
  t.match(again.screen(), '\x1b[?25h', 'the cursor is restored')
})

const PLAN = planReply('Qwen/Qwen3-GGUF')

t.test('pull --dry-run shows the plan', async t => {
  const tight = { ...PLAN, disk: { required: 2, available: 1, fits: false } }
  const server = await scriptedServer(t, {
    'POST /api/pull': (reply, _body, count) => reply.end(JSON.stringify(count < 3 ? PLAN : tight))
  })
  const home = newHome(t)
  const dry = ['pull', REFERENCE, '--dry-run', ...server.flags]
  t.match(await corral(dry, { home }), { code: 0, stderr: '', stdout: /chosen +It is the best.*Files\n.*q8\.gguf/s })
  const json = await corral([...dry, '--json'], { home })
  t.same(JSON.parse(json.stdout), PLAN)
  t.match(await corral(dry, { home }), { code: 1, stdout: /not enough/ }, 'too small a disk')
  t.same(server.bodies('POST /api/pull')[0], { model: REFERENCE, dry_run: true })
})

t.test('pull --detach starts a download in the server', async t => {
  const server = await scriptedServer(t, {
    'POST /api/pull': (reply, _body, count) => {
      reply.writeHead(count === 1 ? 202 : 200).end(JSON.stringify({ status: count === 1 ? 'downloading' : 'success' }))
    }
  })
  const home = newHome(t)
  const detach = ['pull', REFERENCE, '--detach']
  t.match(await corral([...detach, ...server.flags], { home }), { code: 0, stdout: '', stderr: /corral pulls\n$/ })
  t.match(await corral([...detach, ...server.flags], { home }), { code: 0, stderr: /is already downloaded/ })
  t.same(server.bodies('POST /api/pull')[0], { model: REFERENCE, detach: true, stream: false })
  t.match(await corral(detach, { home }), { code: 3, stdout: '', stderr: /requires a running server.*corral serve/ })
})

t.test('pulls lists, pauses, resumes and cancels downloads', async t => {
  const paused = { state: 'paused', completed: 30, total: 60, speed: 0, reason: 'Nobody watched it.' } as const
  const pulls = [pullReply('a/b:Q8_0', paused)]
  const server = await scriptedServer(t, {
    'GET /api/pulls': reply => reply.end(JSON.stringify({ pulls })),
    'POST /api/pulls/pause': reply => reply.end(JSON.stringify(pulls[0])),
    'POST /api/pulls/resume': reply => reply.end(JSON.stringify(pulls[0])),
    'POST /api/pulls/cancel': (reply, body) =>
      body.id === 'none'
        ? refuse(reply, 404, 'model_not_found', 'There is no pull "none".')
        : reply.end('{"status":"cancelled"}')
  })
  const home = newHome(t)
  const ask = (...args: string[]) => corral(['pulls', ...args, ...server.flags], { home })
  await checkCommands(t, 'pulls', words => corral([...words, ...server.flags], { home }))
  t.same(JSON.parse((await ask('--json')).stdout), { pulls })
  t.same(JSON.parse((await ask('resume', 'abc', '--json')).stdout), pulls)
  t.same(
    ['pause', 'resume', 'cancel'].map(action => server.bodies(`POST /api/pulls/${action}`)),
    [[{ model: 'a/b:Q8_0' }], [{ id: 'abc' }], [{ id: 'none' }, { model: 'a/b' }]]
  )
  const offline = await corral(['pulls', 'resume', 'a/b'], { home })
  t.match(offline, { code: 3, stderr: /Only a running server.*corral serve.*corral pull a\/b/ })
})
