import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { commandEnvironment, MAIN, newHome } from '../../command-line/command.ts'
import { alive, type Corral, DEMO, endless, startCorral, until } from '../../support/corral.ts'
import { freePorts, rpcServers } from './support.ts'
import { writeWideModel } from './wide-model.ts'

/*
 * A model that is really distributed over two workers: two `corral worker`s and a corral, each a process with its own
 * data directory.
 */

interface Lent {
  address: string
  port: number
  home: string
  process: ChildProcess
  text(): string
  end(signal: NodeJS.Signals): Promise<number | null>
}

async function lend(t: Test, given: { port?: number; home?: string; flags?: string[] } = {}): Promise<Lent> {
  const port = given.port ?? (await freePorts())
  const home = given.home ?? newHome(t)
  const child = spawn(
    process.execPath,
    [MAIN, 'worker', '--port', `${port}`, '--threads', '1', ...(given.flags ?? [])],
    {
      cwd: home,
      env: commandEnvironment({ home }),
      stdio: ['ignore', 'pipe', 'pipe']
    }
  )
  let text = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', piece => {
      text += piece
    })
  }
  const exited = once(child, 'exit').then(([code]) => code as number | null)
  const end = async (signal: NodeJS.Signals) => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal)
    return await exited
  }
  t.teardown(async () => {
    await end('SIGKILL')
    await until('no ggml-rpc-server is left', () => rpcServers(port).length === 0)
  })
  await until('the worker is ready', () => {
    if (child.exitCode !== null) throw new Error(`The worker ended:\n${text}`)
    return text.includes('Press Ctrl-C to stop the worker')
  })
  return { address: `127.0.0.1:${port}`, port, home, process: child, text: () => text, end }
}

const ask = async (corral: Corral, content: string, model = DEMO) =>
  await corral.json('/api/chat', {
    model,
    stream: false,
    options: { temperature: 0, max_tokens: 40 },
    messages: [{ role: 'user', content }]
  })

const QUESTIONS = ['What is the capital of France?', 'Count to 10.', 'Who are you?', 'What is the largest planet?']
const settings = (...workers: Lent[]) =>
  `models:\n  ${DEMO}:\n    rpc: [${workers.map(({ address }) => address).join(', ')}]\n`

t.setTimeout(900_000)

t.test('a distributed model is loaded and answers', async t => {
  const [one, two] = await Promise.all([lend(t), lend(t)])
  t.match(one.text(), /Lends +CPU /)
  const spread = await startCorral(t, { config: settings(one, two) })

  await t.test('a distributed model answers as on a single machine', async t => {
    const single = await startCorral(t)
    for (const question of QUESTIONS) {
      const [there, here] = [await ask(spread, question), await ask(single, question)]
      t.equal(there.status, 200, JSON.stringify(there.body))
      t.same(there.body.message, here.body.message, question)
      t.equal(there.body.eval_count, here.body.eval_count)
    }
    await single.end()
  })

  await t.test('has layers on both workers, which are pools of memory', async t => {
    const { body } = await spread.json('/api/ps')
    const [model] = body.models
    for (const { address } of [one, two]) {
      t.ok(model.memory[address] > 0, `${address}, by llama-server's own report`)
      const pool = body.memory.find(({ pool }: { pool: string }) => pool === address)
      t.ok(pool.reserved > 0 && pool.budget > pool.reserved, 'reserved from its budget')
    }
    const asked = (await (await fetch(`http://127.0.0.1:${one.port + 1}/worker`)).json()) as { busy: boolean }
    t.equal(asked.busy, true)
  })

  await t.test('a killed worker ends the answer with its name, and comes back', async t => {
    const controller = new AbortController()
    const reply = await spread.send('/api/chat', endless(DEMO), { signal: controller.signal })
    let text = ''
    let killed = false
    for await (const piece of reply.body!) {
      text += Buffer.from(piece).toString()
      if (killed || !text.includes('"content"')) continue
      killed = true
      process.kill(two.process.pid!, 'SIGKILL')
    }
    t.match(text, new RegExp(`"cause":"rpc_lost","worker":"${two.address}"`))
    t.match(text, /"code":"engine_crashed"/)
    await until('no orphan', () => rpcServers(two.port).length === 0)
    for (let attempt = 0; attempt < 3; attempt++) {
      const { status, body } = await ask(spread, QUESTIONS[0]!)
      t.match(
        { status, body },
        { status: 503, body: { code: 'engine_unreachable', cause: 'rpc_unreachable', worker: two.address } }
      )
    }
    t.equal(spread.enginePids().length, 0, 'nothing was started for them')
    const again = await lend(t, { port: two.port, home: two.home })
    t.match(await ask(spread, QUESTIONS[0]!), { status: 200, body: { message: { content: /Paris/ } } })

    for (const pid of rpcServers(again.port)) process.kill(pid, 'SIGKILL')
    await until('its engine is gone', () => spread.enginePids().length === 0)
    const back = await until('it serves again', async () => {
      const reply = await ask(spread, QUESTIONS[0]!)
      return reply.status === 200 ? reply : undefined
    })
    t.match(back.body.message.content, /Paris/, 'a worker restarts its server')
    t.equal(await again.end('SIGINT'), 0, 'Ctrl-C')
    t.match(again.text(), /stopped\n$/)
    t.same(rpcServers(again.port), [])
  })
})

t.test('a worker outlives its clients, and serves one at a time', async t => {
  const worker = await lend(t)
  const first = await startCorral(t, { config: settings(worker) })
  t.equal((await ask(first, QUESTIONS[0]!)).status, 200)
  const second = await startCorral(t, { config: settings(worker) })
  const refused = await ask(second, QUESTIONS[0]!)
  t.match(refused, { status: 503, body: { code: 'engine_unreachable', cause: 'rpc_busy', worker: worker.address } })
  const [engine] = first.enginePids()
  await first.end('SIGKILL')
  await until('its engine is gone', () => !alive(engine!))
  t.match(await ask(second, QUESTIONS[0]!), { status: 200, body: { message: { content: /Paris/ } } })
  t.equal(await worker.end('SIGTERM'), 0)
})

t.test('two models that share a worker take turns', async t => {
  const worker = await lend(t)
  const folder = t.testdir()
  const path = join(folder, 'wide.gguf')
  await writeWideModel(path)
  const wide = 'me/wide'
  const corral = await startCorral(t, {
    config: `${settings(worker)}  ${wide}:\n    rpc: ["${worker.address}"]\n    options: { num_ctx: 512, num_parallel: 1 }\n`
  })
  const imported = await corral.json('/api/import', { path, name: wide }, { local: true })
  t.ok(imported.status < 300, JSON.stringify(imported.body))
  t.equal((await ask(corral, QUESTIONS[0]!)).status, 200)
  const told = await ask(corral, QUESTIONS[0]!, wide)
  t.match(told, { status: 200, body: { message: { content: /Paris/ } } }, JSON.stringify(told.body))
  const names = (await corral.json('/api/ps')).body.models.map(({ name }: { name: string }) => name)
  t.same(names, [wide])

  // The weights that were sent are stored, and the answers stay the same.
  const cache = join(worker.home, 'cache', 'rpc', `${worker.port}`)
  const kept = readdirSync(join(cache, 'rpc'))
  t.ok(kept.length > 0, 'weights are stored')
  t.equal((await ask(corral, QUESTIONS[0]!)).status, 200)
  await until('they are marked as complete', () => existsSync(join(cache, 'complete.json')))
  const again = await ask(corral, QUESTIONS[0]!, wide)
  t.same(again.body.message, told.body.message)
  t.same(readdirSync(join(cache, 'rpc')), kept)

  t.equal(await worker.end('SIGTERM'), 0)
  const size = kept.reduce((sum, name) => sum + statSync(join(cache, 'rpc', name)).size, 0)
  const smaller = await lend(t, { port: worker.port, home: worker.home, flags: ['--cache', `${Math.floor(size / 2)}`] })
  const left = readdirSync(join(cache, 'rpc'))
  t.ok(left.length > 0 && left.length < kept.length, 'a smaller limit applies from the start')
  t.same((await ask(corral, QUESTIONS[0]!, wide)).body.message, told.body.message)
  t.equal(await smaller.end('SIGTERM'), 0)
})
