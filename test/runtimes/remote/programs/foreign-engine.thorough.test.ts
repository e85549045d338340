import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { errorMessage } from '../../../../core/errors.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { binary, findPython, installPackages } from '../../../../scripts/python-environments.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'

/* An engine that is not corral's: xllamacpp, a Python package with its own, newer llama.cpp. */

// It is installed at first.
t.setTimeout(900_000)
const PACKAGE = 'xllamacpp==2026.10.11549'
const environment = join(packageRoot, '.cache', 'foreign-python')
const SCRIPT = join(packageRoot, 'test', 'fixtures', 'xllamacpp-server.py')
const FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const model = 'other/foreign'

function prepare(): string | false {
  const python = binary(environment, 'python')
  const works = () => spawnSync(python, ['-c', 'import xllamacpp'], { stdio: 'ignore' }).status === 0
  if (existsSync(python) && works()) return false
  try {
    installPackages(findPython(), environment, [PACKAGE])
    return false
  } catch (error) {
    if (process.env.CI) throw error
    return `${PACKAGE} cannot be installed: ${errorMessage(error)}`
  }
}

t.test(
  'a foreign engine answers on every API, shares memory with llama-server, and is started again',
  {
    skip: prepare()
  },
  async t => {
    const mark = newFolder(t)
    const command = [binary(environment, 'python'), SCRIPT, '{port}', '{model}', mark]
      .map(word => `"${word}"`)
      .join(' ')
    const corral = await startCorral(t, {
      config: `scheduler: { memory: 3100MiB, load_grace: 100ms }
defaults: { temperature: 0 }
engines: ${JSON.stringify({ foreign: { command, context: 2048, parallel: 1, memory: { host: '3GiB' } }, measured: { command, context: 2048 } })}
models: ${JSON.stringify({ [model]: { engine: 'foreign', files: FILE }, 'other/measured': { engine: 'measured', files: FILE } })}
`
    })
    // Without the process beside it that ends it with the gateway.
    const pattern = `^${binary(environment, 'python')} ${SCRIPT} .*${mark}`
    const pids = () => spawnSync('pgrep', ['-f', pattern]).stdout.toString().split('\n').filter(Boolean).map(Number)
    const messages = [CAPITAL_QUESTION]
    const asks: [path: string, body: object, read: (body: any) => string][] = [
      ['/v1/chat/completions', { messages }, body => body.choices[0].message.content],
      ['/v1/responses', { input: CAPITAL_QUESTION.content }, body => body.output.at(-1).content[0].text],
      ['/v1/messages', { messages, max_tokens: 30 }, body => body.content[0].text],
      ['/ollama/api/chat', { messages, stream: false }, body => body.message.content]
    ]
    for (const [path, body, read] of asks) {
      const reply = await corral.json(path, { model, ...body })
      t.equal(reply.status, 200, `${path}: ${JSON.stringify(reply.body)}`)
      t.match(read(reply.body), CAPITAL_ANSWER, path)
    }
    const events = await corral.events('/v1/chat/completions', { model, messages, stream: true })
    const pieces = events.flatMap(event => event.choices?.[0]?.delta.content ?? [])
    t.ok(pieces.length > 2, 'it streams')
    t.match(pieces.join(''), CAPITAL_ANSWER)
    const completion = await corral.json('/v1/completions', {
      model,
      prompt: 'The capital of France is',
      max_tokens: 4
    })
    t.match(completion, { status: 200, body: { choices: [{ text: String }], usage: { completion_tokens: Number } } })
    const [pid] = pids()
    t.equal(pids().length, 1, 'one process answered all')

    t.comment('it is ended for a model of llama-server, and the other way round')
    const loaded = async () => (await corral.json('/api/ps')).body.models.map(({ model }: { model: string }) => model)
    t.same(await loaded(), [model])
    t.match((await corral.json('/api/ps')).body.models[0].memory, { host: 3 * 2 ** 30 })
    const demo = await corral.json('/v1/chat/completions', { model: DEMO, messages })
    t.match(demo, { status: 200, body: { choices: [{ message: { content: CAPITAL_ANSWER } }] } })
    t.same(await loaded(), [DEMO])
    await until('its process has ended', () => pids().length === 0)
    t.equal((await corral.json('/v1/chat/completions', { model, messages })).status, 200)
    t.same(await loaded(), [model])
    t.not(pids()[0], pid)

    t.comment('it is killed')
    process.kill(pids()[0]!, 'SIGKILL')
    await until('corral notices', async () => (await loaded()).length === 0)
    const again = await corral.json('/v1/chat/completions', { model, messages })
    t.match(again, { status: 200, body: { choices: [{ message: { content: CAPITAL_ANSWER } }] } })

    t.comment('without a setting, its memory is measured')
    t.equal((await corral.json('/v1/chat/completions', { model: 'other/measured', messages })).status, 200)
    const { models } = (await corral.json('/api/ps')).body
    const { memory } = models.find((each: { model: string }) => each.model === 'other/measured')
    t.ok(memory.host > 5 * 2 ** 20 && memory.host < 3 * 2 ** 30, `${memory.host} bytes`)
  }
)
