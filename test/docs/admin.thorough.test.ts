import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { commandEnvironment, MAIN } from '../command-line/command.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, endless, startCorral } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'

const guide = readFileSync(join(packageRoot, 'docs', 'admin.md'), 'utf8')

/** The guide's command blocks, found by words in them. */
const blocks = [...guide.matchAll(/^```sh\n(.*?)^```/gms)].map(([, text]) => text!)
const block = (words: string) => blocks.find(text => text.includes(words))!

/** Runs commands of the guide in this data directory, with `corral` on the PATH. */
function run(t: Test, commands: string, home: string, backup = '/root/corral-backup.tar.gz') {
  const programs = newFolder(t)
  writeFileSync(join(programs, 'corral'), `#!/bin/sh\nexec "${process.execPath}" "${MAIN}" "$@"\n`)
  chmodSync(join(programs, 'corral'), 0o755)
  const text = commands
    .replaceAll('sudo -u corral ', '')
    .replaceAll('/var/lib/corral', home)
    .replaceAll('/root/corral-backup.tar.gz', backup)
  const { CORRAL_HOME: _, ...env } = commandEnvironment({ home })
  const path = `${programs}:${process.env.PATH}`
  return spawnSync('bash', ['-e', '-c', text], { cwd: programs, env: { ...env, PATH: path }, encoding: 'utf8' })
}

/** Programs in the guide that change the machine. These tests run all other commands. */
const OF_THE_SYSTEM = ['apt-get', 'journalctl', 'npm', 'systemctl']

t.test('the commands of the guide succeed', async t => {
  // No hub answers here. The error is enough to see that the command requests the model.
  const corral = await startCorral(t, { env: { HF_ENDPOINT: 'http://127.0.0.1:9' } })
  const { home } = corral
  let ran = 0
  for (const line of blocks.flatMap(text => text.replaceAll('\\\n', '').trim().split('\n'))) {
    const [program = '', ...words] = line
      .replace('sudo -u corral ', '')
      .replace('CORRAL_API_KEYS=<key> ', '')
      .split(' ')
    if (OF_THE_SYSTEM.includes(program) || ['tar', 'mkdir'].includes(program)) continue
    t.equal(program, 'corral', `${program} is a known program`)
    if (words.includes('https://models.example.org')) continue
    const { status, stdout, stderr } = run(t, words[0] === 'service' ? `${line} --user --dry-run` : line, home)
    if (words[0] === 'pull') t.match(stderr, /127\.0\.0\.1:9/, line)
    else t.equal(status, 0, `${line}\n${stdout}${stderr}`)
    ran++
  }
  t.ok(ran >= 8, `${ran} commands were run`)
  const { keys } = (await corral.json('/api/keys', undefined, { local: true })).body
  t.same(keys.map(({ name }: any) => name).sort(), ['alice', 'lab', 'ops'])
})

t.test('a backup of a running server starts elsewhere', async t => {
  if (spawnSync('tar', ['--version']).stdout?.includes('GNU') !== true) return t.comment('skipped: this is not GNU tar')
  const corral = await startCorral(t)
  const { home } = corral
  t.equal(run(t, 'corral key create alice --home /var/lib/corral --yes', home).status, 0)
  const made = await corral.json('/api/create', { model: 'me/helper', from: DEMO, stream: false }, { local: true })
  t.equal(made.status, 200, JSON.stringify(made.body))
  const controller = new AbortController()
  const stream = await corral.send('/api/chat', endless(DEMO), { local: true, signal: controller.signal })
  const backup = join(newFolder(t), 'backup.tar.gz')
  const saved = run(t, block('tar --create'), home, backup)
  t.equal(saved.status, 0, saved.stderr)
  t.equal(
    (await corral.json('/api/ps', undefined, { local: true })).body.models[0].running,
    1,
    'it answers during the backup'
  )

  const elsewhere = join(newFolder(t), 'restored')
  const restored = run(t, block('tar --extract'), elsewhere, backup)
  t.equal(restored.status, 0, restored.stderr)
  // `startCorral` writes the settings itself. The restored file has the same content.
  t.equal(readFileSync(join(elsewhere, 'config.yaml'), 'utf8'), readFileSync(join(home, 'config.yaml'), 'utf8'))
  const other = await startCorral(t, { home: elsewhere })
  t.equal((await other.send('/api/tags')).status, 401, 'the keys are restored')
  const names = (await other.json('/api/tags', undefined, { local: true })).body.models.map(({ name }: any) => name)
  t.ok(
    names.some((name: string) => name.startsWith('me/helper')),
    names.join()
  )
  const { body } = await other.json(
    '/api/chat',
    { model: 'me/helper', messages: [CAPITAL_QUESTION], stream: false, options: { temperature: 0 } },
    { local: true }
  )
  t.equal(body.message.content, CAPITAL_ANSWER)
  controller.abort()
  await stream.text().catch(() => {})
})

t.test('a data directory of a newer corral is served with a warning in the log', async t => {
  const home = newFolder(t)
  for (const [version, warns] of [
    ['99.0.0', true],
    ['0.0.9', false],
    ['no version', false]
  ] as const) {
    writeFileSync(join(home, 'version'), `${version}\n`)
    mkdirSync(join(home, 'of-the-future'), { recursive: true })
    writeFileSync(join(home, 'of-the-future', 'file'), 'kept')
    const corral = await startCorral(t, { home })
    t.equal(corral.log().includes(`corral ${version}, which is newer`), warns, version)
    t.equal(await corral.end(), 0)
    t.equal(readFileSync(join(home, 'of-the-future', 'file'), 'utf8'), 'kept')
  }
})
