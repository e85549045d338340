import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { corralWithHub, quantizedModels } from '../plugins/models/download/support.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { ollamaCommandLine } from '../support/ollama-command-line.ts'

// Ollama's own command line, built from source, against a live corral with the real engine.
const built = ollamaCommandLine()
const program = 'path' in built ? built.path : ''
const skip = 'missing' in built ? `OLLAMA'S COMMAND LINE IS NOT TESTED HERE: ${built.missing}.` : false
const hub = await startHubEmulator(t, {
  repositories: { 'test/tiny-GGUF': { files: { 'tiny-Q8_0.gguf': quantizedModels().Q8_0 } } }
})
const corral = await corralWithHub(t, hub, {
  config: 'api-ollama: { listen: "127.0.0.1:0" }\ndefaults: { num_parallel: 1, temperature: 0 }'
})
const own = /served at (http:\/\/[\d.]+:\d+)/.exec(corral.log())![1]!
const demo = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const home = t.testdir({ Modelfile: `FROM ${demo}\nPARAMETER temperature 0\nSYSTEM You are Leo.\n` })
const environment = (host: string) => ({ ...process.env, OLLAMA_HOST: host, HOME: home, TERM: 'xterm' })

/** A terminal's text without its control sequences. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is left out
const plain = (text: string) => text.replace(/\x1b\[[0-9;?]*[a-zA-Z]/g, '').replace(/\r/g, '')

async function ollama(host: string, ...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const child = spawn(program, args, { env: environment(host), stdio: ['ignore', 'pipe', 'pipe'] })
  const text = { out: '', err: '' }
  child.stdout.setEncoding('utf8').on('data', chunk => {
    text.out += chunk
  })
  child.stderr.setEncoding('utf8').on('data', chunk => {
    text.err += chunk
  })
  const [code] = (await once(child, 'close')) as [number]
  return { code, out: plain(text.out), err: plain(text.err) }
}

/** `ollama run` on a terminal, controlled line by line. */
function onTerminal(t: Test, host: string, ...args: string[]) {
  const command = [program, ...args].map(word => `'${word}'`).join(' ')
  const child = spawn('script', ['-qec', `stty cols 200 rows 40; exec ${command}`, '/dev/null'], {
    env: environment(host),
    stdio: ['pipe', 'pipe', 'inherit']
  })
  const exited = once(child, 'close')
  t.teardown(async () => {
    child.kill('SIGKILL')
    await exited
  })
  let output = ''
  child.stdout!.setEncoding('utf8').on('data', text => {
    output += text
  })
  const sees = (what: string | RegExp) =>
    until(`"${what}" on the screen, which shows ${JSON.stringify(plain(output).slice(-500))}`, () =>
      typeof what === 'string' ? plain(output).includes(what) : what.test(plain(output))
    )
  return {
    sees,
    async says(line: string, answer: string | RegExp) {
      await sees(/>>> Send a message[^\n]*$/)
      output = ''
      child.stdin!.write(`${line}\r`)
      await sees(answer)
    },
    async leaves() {
      child.stdin!.write('/bye\r')
      const [code] = (await exited) as [number]
      return code
    }
  }
}

for (const [name, host] of [
  ['below /ollama', `${corral.url}/ollama`],
  ['at its own address', own.replace('http://', '')]
] as const) {
  t.test(name, { skip }, async t => {
    const run = (...args: string[]) => ollama(host, ...args)
    t.match(await run('--version'), { code: 0, out: /ollama version is 0\.17\.4/ })
    t.match(await run('pull', 'hf.co/test/tiny-GGUF:Q8_0'), { code: 0, err: /success/ })
    t.match(await run('pull', 'tiny-GGUF'), { code: 0, err: /success/ }, 'installed models')
    t.match(await run('list'), { code: 0, out: /NAME +ID +SIZE +MODIFIED *\ntest\/tiny-GGUF:latest +[0-9a-f]{12} / })
    t.match(await run('show', 'tiny-GGUF'), {
      code: 0,
      out: /architecture +llama[\s\S]*quantization +Q8_0[\s\S]*tools/
    })
    t.match(await run('show', '--modelfile', 'tiny-GGUF'), { code: 0, out: /^FROM /m })
    t.match(await run('show', '--verbose', 'tiny-GGUF'), { code: 0, out: /llama\.context_length +32768/ })

    const answered = await run('run', 'tiny-GGUF', CAPITAL_QUESTION.content)
    t.match(answered, { code: 0 })
    t.equal(answered.out.trim(), CAPITAL_ANSWER)
    t.match(await run('ps'), {
      code: 0,
      out: /test\/tiny-GGUF:latest +[0-9a-f]{12} .*100% CPU +4096 +\d+ minutes? from now/
    })
    t.match(await run('run', 'nothing', 'hi'), { code: 1, err: /"nothing" is not here[\s\S]*<owner>\/<name>/ })

    const terminal = onTerminal(t, host, 'run', 'tiny-GGUF', '--verbose')
    await terminal.says(CAPITAL_QUESTION.content, /Paris\.[\s\S]*eval rate/)
    await terminal.says('/show info', 'Capabilities')
    await terminal.says('/set system You are Leo.', 'Set system message')
    await terminal.says('/set parameter temperature 0', /Set parameter/)
    await terminal.says('/save saved', /Created new model 'saved'/)
    t.equal(await terminal.leaves(), 0, 'a conversation on a terminal')

    t.match(await run('show', '--system', 'saved'), { code: 0, out: /You are Leo\./ })
    t.match(await run('cp', 'saved', 'copied'), { code: 0, out: /copied 'saved' to 'copied'/ })
    t.match(await run('rm', 'saved', 'copied'), { code: 0, out: /deleted 'saved'\ndeleted 'copied'/ })
    t.match(await run('rm', 'saved'), { code: 1, err: /not found/ })
    t.match(await run('create', 'leo', '-f', join(home, 'Modelfile')), { code: 0, err: /success/ })
    t.equal((await run('run', 'leo', 'Who are you?')).out.trim(), 'I am Leo.')
    t.match(await run('push', 'leo'), { code: 1, err: /ollama\.com/ })
    t.match(await run('rm', 'leo'), { code: 0 })

    t.match(await run('stop', 'tiny-GGUF'), { code: 0 })
    t.match(await run('stop', 'nothing'), { code: 1, err: /couldn't find model "nothing" to stop/ })
    await until('no model is loaded', async () => !(await run('ps')).out.includes('tiny-GGUF'))
    t.match(await run('rm', 'tiny-GGUF'), { code: 0, out: /deleted/ })
    t.notMatch((await run('list')).out, /tiny/)
  })
}
