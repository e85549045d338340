import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import t from 'tap'
import { sample } from '../support/thorough.ts'
import { commandEnvironment, corral, MAIN, newHome, writeScript } from './command.ts'
import { localModel } from './records.ts'
import { scriptedServer } from './scripted-server.ts'
import { tables } from './tables.ts'

t.test('complete offers commands, options and values', async t => {
  const models = ['me/model', 'me/model:Q8_0', 'other/one'].map(localModel)
  const server = await scriptedServer(t, { 'GET /api/tags': reply => reply.end(JSON.stringify({ models })) })
  const home = newHome(t)
  const env = { CORRAL_PORT: server.flags[1]! }
  const complete = async (...words: string[]) => {
    const { code, stdout, stderr } = await corral(['__complete', '--', ...words], { home, env })
    t.match({ code, stderr }, { code: 0, stderr: '' }, words.join(' '))
    return stdout.split('\n').flatMap(line => line.split('\t')[0] || [])
  }
  for (const [words, offers] of sample(tables.completion!, 2)) t.same(await complete(...words), offers, words.join(' '))
  t.notOk((await complete('')).includes('__complete'), 'it is hidden')
})

t.test('complete finds names on disk without a server, and does not wait for a silent server', async t => {
  const home = newHome(t)
  mkdirSync(join(home, 'models', 'me', 'model'), { recursive: true })
  mkdirSync(join(home, 'models', '.downloads', 'x'), { recursive: true })
  t.match(await corral(['__complete', '--', 'run', ''], { home }), { code: 0, stdout: 'me/model\t\n', stderr: '' })
  const silent = await scriptedServer(t, { 'GET /api/tags': () => {} })
  const env = { CORRAL_PORT: silent.flags[1]! }
  t.match(await corral(['__complete', '--', 'run', ''], { home, env }), { code: 0, stdout: '', stderr: '' })
  writeFileSync(join(home, 'config.yaml'), 'port: [')
  t.match(await corral(['__complete', '--', 'run', ''], { home }), { code: 0, stderr: '' }, 'a broken configuration')
})

const has = (shell: string) => spawnSync(shell, ['--version']).status === 0

/** A data directory with a model, and an environment with the command `corral`. */
function shellSetting(t: Parameters<typeof newHome>[0]) {
  const home = newHome(t)
  mkdirSync(join(home, 'models', 'me', 'model'), { recursive: true })
  mkdirSync(join(home, 'bin'))
  writeScript(join(home, 'bin'), 'corral', `exec '${process.execPath}' '${MAIN}' "$@"`)
  const env = commandEnvironment({ home, env: { PATH: `${join(home, 'bin')}${delimiter}${process.env.PATH}` } })
  return { home, env: { ...env, HOME: home, TERM: 'dumb' } }
}

t.test('completion works in bash', { skip: !has('bash') }, async t => {
  const { home, env } = shellSetting(t)
  const script = `source <(corral completion bash)
for line in "run me" "ps --w" "pulls re"; do
  COMP_WORDS=(corral $line); COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)); _corral; echo "\${COMPREPLY[@]}"
done`
  const found = execFileSync('bash', ['--norc', '-c', script], { cwd: home, env, encoding: 'utf8' })
  t.equal(found, 'me/model\n--watch\nresume\n')
})

t.test('completion works in fish', { skip: !has('fish') }, async t => {
  const { home, env } = shellSetting(t)
  const script = `corral completion fish | source
for line in "corral run me" "corral ps --w" "corral pulls re"
  complete -C $line
end`
  const found = execFileSync('fish', ['--no-config', '-c', script], { cwd: home, env, encoding: 'utf8' })
  t.match(found, /^me\/model\n--watch\t.*\nresume\t.*\n$/)
})

t.test('completion works in zsh', { skip: !has('zsh') }, async t => {
  const { home, env } = shellSetting(t)
  writeFileSync(
    join(home, 'drive.zsh'),
    `zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "autoload -U compinit; compinit -u -D; source <(corral completion zsh); PS1=READY"
shown() { local out all; repeat 600; do
  while zpty -r -t z out; do all+=$out; done
  [[ $all == *$1* ]] && { print -r -- "found $1"; return }
  sleep 0.1
done; print -r -- "not found: $all" }
shown READY
zpty -w -n z $'corral run m\\t'; shown me/model
zpty -w -n z $'\\x15corral ps --w\\t'; shown --watch
zpty -d z`
  )
  const found = execFileSync('zsh', ['-f', 'drive.zsh'], { cwd: home, env, encoding: 'utf8' })
  t.match(found, /found me\/model\nfound --watch\n$/)
})
