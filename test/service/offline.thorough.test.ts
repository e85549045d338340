import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_ANSWER, capital, DEMO, startCorral } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'

// A server and its commands in a network namespace with loopback only, watched by strace.

const DEMO_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const canWatch =
  spawnSync('unshare', ['--net', 'ip', 'link', 'set', 'lo', 'up']).status === 0 &&
  spawnSync('strace', ['--follow-forks', '--quiet=all', 'true']).status === 0
const options = canWatch ? {} : { skip: 'this needs root, unshare, ip and strace' }

/** A command that runs another one alone and records its connections and datagrams in a file. */
function watched(file: string): string[] {
  const script = 'ip link set lo up; exec strace --follow-forks --seccomp-bpf --quiet=all --string-limit=0 "$@"'
  const calls = '--trace=connect,sendto,sendmsg,sendmmsg,bind'
  return ['unshare', '--net', 'bash', '-c', script, 'bash', calls, `--output=${file}`]
}

/** The addresses of other machines in recorded calls, which include name servers. */
function foreign(file: string): string[] {
  const lines = readFileSync(file, 'utf8').split('\n')
  const isOther = (line: string) =>
    /sa_family=AF_INET6?,/.test(line) && !/inet_addr\("127\.|inet_pton\(AF_INET6, "(::1|::ffff:127\.)/.test(line)
  // Without an address a server would listen to all networks, but nothing is sent.
  return lines.filter(line => isOther(line) && !/\bbind\(/.test(line))
}

async function start(t: Test, env: Record<string, string>) {
  const folder = newFolder(t)
  const file = join(folder, 'server.calls')
  const server = await startCorral(t, { launcher: watched(file), env })
  let count = 0
  const files = [file]
  /** Runs a command in a namespace of its own. It reaches the server through the private socket. */
  const run = (...words: string[]) => {
    const calls = join(folder, `${count++}.calls`)
    const [program, ...before] = watched(calls)
    const own = join(packageRoot, 'dist', 'bundle', 'main.js')
    const { status, stdout, stderr } = spawnSync(program!, [...before, process.execPath, own, ...words], {
      env: { ...process.env, CORRAL_HOME: server.home, ...env },
      cwd: server.home,
      encoding: 'utf8'
    })
    files.push(calls)
    return { code: status, stdout, stderr }
  }
  /** Ends the server, and returns what it and the commands sent to other machines. */
  const end = async () => {
    const exited = once(server.process, 'exit')
    // strace does not pass the signal on.
    process.kill(JSON.parse(readFileSync(join(server.home, 'owner.json'), 'utf8')).pid)
    await exited
    return files.flatMap(foreign)
  }
  return { server, run, end }
}

t.test('with HF_HUB_OFFLINE=1, users reach no other machine', options, async t => {
  const { server, run, end } = await start(t, { HF_HUB_OFFLINE: '1' })
  const ask = (path: string, body?: unknown) => server.json(path, body, { local: true })
  const works = (...words: string[]) => {
    const { code, stdout, stderr } = run(...words)
    t.equal(code, 0, `${words.join(' ')}: ${stderr}`)
    return stdout
  }
  t.match(works('list'), DEMO)
  t.match(works('run', DEMO, 'What is the capital of France?'), CAPITAL_ANSWER)
  t.match(works('ps'), DEMO)
  works('import', DEMO_FILE, 'me/mine')
  t.match(works('show', 'me/mine'), 'llama')
  t.not(run('pull', 'hf:some/model').code, 0, 'a pull fails')
  t.not(run('search', 'qwen').code, 0, 'and a search')
  t.match(await ask('/api/chat', capital('me/mine')), { status: 200, body: { message: { content: CAPITAL_ANSWER } } })
  const openai = { model: DEMO, messages: [{ role: 'user', content: 'hi' }], max_tokens: 4 }
  t.match(await ask('/v1/chat/completions', openai), { status: 200 })
  t.match(await ask('/v1/messages', openai), { status: 200 })
  t.equal((await ask('/v1/embeddings', { model: DEMO, input: 'a text' })).status, 200)
  for (const path of [
    '/',
    '/docs',
    '/openapi.json',
    '/metrics',
    '/api/tags',
    '/v1/models',
    '/api/runtimes',
    '/api/recommended'
  ])
    t.equal((await server.send(path, undefined, { local: true, headers: { accept: 'text/html' } })).status, 200, path)
  works('bench', DEMO, '--quick')
  t.ok(JSON.parse(run('doctor', '--json').stdout))
  works('verify', '--deep')
  works('runtime', 'list')
  works('stop', DEMO)
  works('rm', 'me/mine')
  works('config', 'check')
  t.same(await end(), [])
})

t.test('without it, the same pull is seen', options, async t => {
  const { run, end } = await start(t, { HF_HUB_OFFLINE: '', HF_ENDPOINT: 'http://192.0.2.1' })
  t.not(run('pull', 'hf:some/model').code, 0)
  t.match((await end()).join('\n'), '192.0.2.1')
})
