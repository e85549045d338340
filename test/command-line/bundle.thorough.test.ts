import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_ANSWER, DEMO } from '../support/corral.ts'
import { archiveName, engineArchive } from '../support/release-archives.ts'
import { commandEnvironment, MAIN, newHome } from './command.ts'

const DEMO_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const canIsolate = spawnSync('unshare', ['--net', 'ip', 'link', 'set', 'lo', 'up']).status === 0
const options = canIsolate ? {} : { skip: 'this needs root, unshare and ip' }

t.setTimeout(900_000)

/** Runs a command in a network namespace with loopback only, without the llama.cpp of the tests. */
function run(home: string, ...words: string[]) {
  const script = 'ip link set lo up; exec "$@"'
  const { status, stdout, stderr } = spawnSync(
    'unshare',
    ['--net', 'bash', '-c', script, 'bash', process.execPath, MAIN, ...words],
    { cwd: home, env: commandEnvironment({ home, env: { CORRAL_LLAMA_CPP: '' } }), encoding: 'utf8' }
  )
  return { code: status, stdout, stderr }
}

t.test('bundles install, upgrade and go back without a network', options, async t => {
  const [home, other] = [newHome(t), newHome(t)]
  const works = (where: string, ...words: string[]) => {
    const { code, stdout, stderr } = run(where, ...words)
    t.equal(code, 0, `${words.join(' ')}: ${stderr.slice(-2000)}`)
    return stdout
  }
  const install = async (tag: string) => {
    const archive = join(home, archiveName(tag))
    writeFileSync(archive, await engineArchive(tag))
    works(home, 'runtime', 'install', archive)
    return JSON.parse(works(home, 'runtime', 'list', '--json')).find(({ build }: any) => build.id.includes(tag)).build
      .id
  }
  const first = await install('b11111')
  works(home, 'import', DEMO_FILE, 'me/mine')
  writeFileSync(join(home, 'corral.tgz'), 'the packed file')
  const create = (file: string, build: string) =>
    works(home, 'bundle', 'create', file, 'me/mine', '--runtime', build, '--package', 'corral.tgz').split(' ')[0]!
  const digest = create('a.tar', first)
  t.equal(create('again.tar', first), digest, 'the same content makes the same file')
  t.equal(run(home, 'bundle', 'create', 'a.tar', '--package', 'corral.tgz').code, 2, 'no file is replaced')
  t.match(
    run(home, 'bundle', 'create', 'b.tar', 'me/other', '--package', 'corral.tgz').stderr,
    /me\/other is not stored/
  )
  t.match(run(home, 'bundle', 'create', 'b.tar').stderr, /is a checkout\. Run "npm pack"/)

  t.equal(run(other, 'list').stdout.includes('me/mine'), false)
  t.match(run(other, 'bundle', 'install', join(home, 'a.tar'), '--sha256', '0'.repeat(64)).stderr, /instead of 0000/)
  const bytes = readFileSync(join(home, 'a.tar'))
  const at = bytes.lastIndexOf('the packed file')
  writeFileSync(join(home, 'damaged.tar'), Buffer.from(bytes).fill('X', at, at + 1))
  t.match(
    run(other, 'bundle', 'install', join(home, 'damaged.tar')).stderr,
    /is damaged: corral-0\.1\.0\.tgz has the SHA-256/
  )
  t.notMatch(works(other, 'list'), 'me/mine', 'nothing of it was installed')

  const inUse = () =>
    JSON.parse(works(other, 'runtime', 'list', '--json')).find(({ state }: any) => state === 'selected').build.id
  works(other, 'bundle', 'install', join(home, 'a.tar'), '--sha256', digest)
  t.match(works(other, 'run', 'me/mine', 'What is the capital of France?'), CAPITAL_ANSWER)
  t.match(works(other, 'verify', '--deep'), 'me/mine:F16: 1 file with the recorded SHA-256')
  const before = inUse()
  t.match(before, 'b11111')

  create('b.tar', await install('b22222'))
  works(other, 'bundle', 'install', join(home, 'b.tar'))
  t.match(inUse(), 'b22222')
  t.match(works(other, 'run', DEMO, 'What is the capital of France?'), CAPITAL_ANSWER)
  works(other, 'bundle', 'install', join(home, 'a.tar'))
  t.equal(inUse(), before, 'the way back')
})
