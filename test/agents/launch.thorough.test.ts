import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { delimiter, join } from 'node:path'
import t from 'tap'
import { corral, newHome } from '../command-line/command.ts'
import { startCorral } from '../support/corral.ts'
import { AGENTS, AGENTS_FOLDER, type AgentName, isInstalled } from './packages.ts'

/** The installed agent, its name for `corral launch`, and arguments for one answer without a terminal. */
const RUNS: [AgentName, string, string[]][] = [
  ['claude-code', 'claude', ['-p', 'Say hello']],
  ['codex', 'codex', ['exec', '--skip-git-repo-check', 'Say hello']],
  ['opencode', 'opencode', ['run', 'Say hello']],
  ['qwen', 'qwen', ['-p', 'Say hello']],
  ['pi', 'pi', ['-p', 'Say hello']],
  ['aider', 'aider', ['--message', 'Say hello', '--yes-always', '--no-git', '--exit', '--no-check-update']],
  ['cline', 'cline', ['Say hello']],
  ['continue', 'continue', ['-p', 'Say hello']],
  ['vibe', 'vibe', ['-p', 'Say hello', '--trust']]
]

t.test('each agent that is installed answers with the model of the server', async t => {
  const model = createServer(async (request, reply) => {
    for await (const _ of request) {
      // The request does not matter.
    }
    if (!request.url!.endsWith('/chat/completions')) return reply.end('{"data":[]}')
    reply.setHeader('content-type', 'text/event-stream')
    const chunk = (delta: object, finish_reason: string | null) =>
      reply.write(`data: ${JSON.stringify({ id: '1', created: 1, choices: [{ index: 0, delta, finish_reason }] })}\n\n`)
    chunk({ role: 'assistant', content: 'Hello from the far model.' }, null)
    chunk({}, 'stop')
    reply.end('data: [DONE]\n\n')
  })
  model.listen(0, '127.0.0.1')
  await once(model, 'listening')
  t.teardown(() => {
    model.closeAllConnections()
    model.close()
  })
  const url = `http://127.0.0.1:${(model.address() as AddressInfo).port}/v1`
  const config = `remote: { models: { far/coder: { model: coder, context: 65536, servers: [{ url: "${url}" }] } } }\n`
  const server = await startCorral(t, { config, env: { CORRAL_API_KEYS: 'sesame' } })
  for (const [agent, name, words] of RUNS) {
    t.test(name, { skip: !isInstalled(agent) && `node dist/scripts/setup-agents.js ${agent}` }, async t => {
      const user = newHome(t)
      const env = {
        HOME: user,
        PATH: `${join(AGENTS_FOLDER, 'bin')}${delimiter}${process.env.PATH}`,
        CORRAL_API_KEYS: 'sesame',
        // Nothing leaves this machine.
        HTTPS_PROXY: 'http://127.0.0.1:9',
        NO_PROXY: '127.0.0.1,localhost',
        DO_NOT_TRACK: '1',
        DISABLE_TELEMETRY: '1',
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
        // Cline's background process ends with the session.
        CLINE_SESSION_BACKEND_MODE: 'local'
      }
      const args = ['launch', name, '--model', 'far/coder', '--yes']
      const { code, stdout, stderr } = await corral([...args, '--', ...words], { home: server.home, env })
      t.equal(code, 0, `${AGENTS[agent].version}: ${stderr.slice(-2000)}`)
      t.match(stdout, 'Hello from the far model.')
      t.notMatch(stdout + stderr, 'sesame', 'the key is not printed')
      t.match(await corral(['launch', name, '--undo'], { home: server.home, env }), { code: 0 })
    })
  }
})
