import { chmodSync, chownSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { ConfigPlaces } from '../../core/config/config-file.ts'
import { loadConfig } from '../../core/config/load.ts'
import { composeConfigSchema, hasMark } from '../../core/config/setting-schema.ts'
import { renewTrust, setTrust, UntrustedConfig } from '../../core/config/trust.ts'
import { outsidePlugins } from '../../core/plugins/outside-plugins.ts'
import { type PosixAccounts, posixWriter, windowsForeigner } from '../../core/system/file-writers.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import type { JsonSchema } from '../../core/system/schema-check.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { readCases } from '../support/fixture.ts'

const GUARDED = 'plugins: [./mine.mjs]\nruntimes: { llama_cpp: ./bin }\nsecurity: { api_keys: [secret], origins: [] }\n'
const MINE = `import { writeFileSync } from 'node:fs'
writeFileSync(new URL('./loaded', import.meta.url), '')
export default { name: 'mine', api: 1, setup: () => ({}) }`

/** A working directory with a plugin and these settings, and a data directory in it. */
function folderWith(yaml: string) {
  const folder = t.testdir({ work: { 'config.yaml': yaml, 'mine.mjs': MINE }, home: {} })
  const [cwd, home] = [join(folder, 'work'), join(folder, 'home')]
  const places = (more: Partial<ConfigPlaces> = {}): ConfigPlaces => ({
    flags: {},
    env: { CORRAL_HOME: home },
    cwd,
    ...more
  })
  const load = async (more?: Partial<ConfigPlaces>) => {
    const found = await outsidePlugins(places(more))
    const config = await loadConfig({ ...places(more), definitions: [...builtInPlugins, ...found] })
    return { plugins: found.map(({ name }) => name), config }
  }
  return { cwd, home, file: join(cwd, 'config.yaml'), load }
}

t.test('settings that run programs are accepted only in a named or trusted file', async t => {
  const { cwd, home, file, load } = folderWith(GUARDED)
  const wanted = ['plugins', 'runtimes.llama_cpp', 'security.api_keys']
  const refused = await load().catch(error => error)
  t.ok(refused instanceof UntrustedConfig, 'the file in the working directory is refused')
  const actual = refused.problems.map(({ setting }: { setting: string }) => setting)
  t.same(actual, wanted, 'because of these settings')
  t.match(refused.message, file, 'which the message names')
  t.match(refused.message, /corral config trust.*--config/)
  t.throws(() => readFileSync(join(cwd, 'loaded')), 'its plugin is not imported')

  for (const named of [{ flags: { config: 'config.yaml' } }, { env: { CORRAL_HOME: home, CORRAL_CONFIG: file } }]) {
    t.same((await load(named)).plugins, ['mine'], 'a named file is accepted')
  }
  t.equal((await load({ ignoresFolder: true })).config.file, undefined, 'commands that talk to a server do not read it')

  await setTrust(home, file, readFileSync(file))
  t.same((await load()).plugins, ['mine'], 'a trusted file is accepted')
  t.equal((await load({ file })).config.file, file, 'also when it is read again')
  const got = (await load({ file, text: `${GUARDED}port: 2` })).config.core.port
  t.equal(got, 2, 'and with text that the server will write')
  writeFileSync(file, `${GUARDED}port: 1`)
  t.match((await load().catch(error => error)).message, /has changed since you trusted it/)
  await t.rejects(load({ file }), { code: 'invalid_config' }, 'a reload is refused too')
  await setTrust(home, file, readFileSync(file))
  writeFileSync(file, `${GUARDED}port: 3`)
  await renewTrust(home, file, `${GUARDED}port: 1`, `${GUARDED}port: 3`)
  t.equal((await load()).config.core.port, 3, 'corral may change a trusted file')
  await setTrust(home, file, undefined)
  await t.rejects(load(), { message: /you have not trusted it/ })
  writeFileSync(join(home, 'trusted-configs.json'), '{')
  await t.rejects(load(), { message: /trusted-configs.json cannot be used: it is not JSON.*Delete it/ })
})

t.test('settings that only affect how models are served need no trust', async t => {
  for (const yaml of [
    'port: 1\nmodels: { a/b: { options: { num_ctx: 1 }, keep_alive: 1m } }\ncluster: { enabled: false }\n',
    readFileSync(join(packageRoot, 'config.yaml'), 'utf8')
  ]) {
    const { load, file } = folderWith(yaml)
    t.equal((await load()).config.file, file)
  }
  const { load, home, cwd } = folderWith(GUARDED)
  renameSync(join(cwd, 'config.yaml'), join(home, 'config.yaml'))
  renameSync(join(cwd, 'mine.mjs'), join(home, 'mine.mjs'))
  t.same((await load()).plugins, ['mine'], 'the file of the data directory is accepted')
  t.same((await load({ cwd: home })).plugins, ['mine'], 'also if that is the working directory')
  symlinkSync(home, join(cwd, 'link'))
  t.same((await load({ cwd: join(cwd, 'link') })).plugins, ['mine'], 'also through a link')
})

t.test(
  'a file or plugin that other accounts can change is not accepted',
  { skip: process.getuid?.() !== 0 },
  async t => {
    const named = { flags: { config: 'config.yaml' } }
    const link = ({ cwd, file }: { cwd: string; file: string }) => {
      const other = join(cwd, 'other')
      mkdirSync(other)
      renameSync(file, join(other, 'real.yaml'))
      symlinkSync(join(other, 'real.yaml'), file)
      chownSync(other, 12_345, 0)
      return other
    }
    const cases: [what: string, place: 'file' | 'cwd', owner: number, group: number, mode: number][] = [
      ['the file is writable by all', 'file', 0, 0, 0o646],
      ['the file is writable by a group', 'file', 0, 12_345, 0o664],
      ['the file belongs to another account', 'file', 12_345, 0, 0o644],
      ['the folder is writable by all', 'cwd', 0, 0, 0o777],
      ['a folder above belongs to another account', 'cwd', 12_345, 0, 0o755]
    ]
    const changes = cases.map(([what, place, owner, group, mode]) => {
      const make = (at: { cwd: string; file: string }) => {
        chownSync(at[place], owner, group)
        chmodSync(at[place], mode)
        return at[place]
      }
      return [what, make] as const
    })
    for (const [what, make] of [...changes, ['a link leads through a folder of another account', link] as const]) {
      const at = folderWith(GUARDED)
      const path = make(at)
      const error = await at.load(named).catch(error => error)
      t.match(error.message, /^config\.yaml can be changed by others/, what)
      t.ok(error.message.includes(path), `${what}: the message names it`)
      t.notOk(error instanceof UntrustedConfig, `${what}: trust would not help`)
      writeFileSync(at.file, 'port: 1')
      t.equal((await at.load(named)).config.core.port, 1, `${what}: harmless settings are accepted`)
      rmSync(at.cwd, { recursive: true })
    }
    const { cwd, load } = folderWith(GUARDED)
    chmodSync(join(cwd, 'mine.mjs'), 0o666)
    await t.rejects(load(named), {
      message: /"\.\/mine\.mjs" cannot be loaded: every account of this machine can write/
    })
    chmodSync(join(cwd, 'mine.mjs'), 0o644)
    t.same((await load(named)).plugins, ['mine'])
  }
)

t.test('posixWriter decides by mode and accounts who can write a file', async t => {
  const accounts = (more: Partial<PosixAccounts> = {}): PosixAccounts => ({
    platform: 'linux',
    uid: 1000,
    passwd: 'root:x:0:0::/:\nann:x:1000:1000::/:\nbob:x:1001:100::/:\ncorral:x:999:999::/:',
    group: 'root:x:0:\nann:x:1000:\nusers:x:100:\ncorral:x:999:\ndev:x:50:ann,bob\nadmin:x:80:\ncorral-bob:x:7:bob',
    ...more
  })
  /** What the file is, its owner, group and mode, who can write it, and other accounts. */
  type Case = [string, number, number, number, string | undefined, Partial<PosixAccounts>?]
  for (const [what, uid, gid, mode, who, more] of readCases<Case[]>('config-cases.yaml', 'posixWriters')) {
    t.equal(posixWriter({ path: '/x', uid, gid, mode }, accounts(more))?.who, who, what)
  }
})

t.test('windowsForeigner decides by the output of Get-Acl who can write a file', async t => {
  const ANN = 'S-1-5-21-1004336348-1177238915-682003330-1001'
  type Case = [what: string, sddl: string, isFolder: boolean, sid: string | undefined]
  for (const [what, sddl, isFolder, sid] of readCases<Case[]>('config-cases.yaml', 'windowsWriters')) {
    t.equal(windowsForeigner(sddl.replaceAll('ANN', ANN), ANN, isFolder), sid, what)
  }
})

/** Settings that name files, addresses or secrets and are harmless nevertheless. */
const HARMLESS = new RegExp(
  `^(${[
    // The listening address and its files, with the same keys.
    'host|tls\\.(certificate|key)|api-ollama\\.listen|web\\.path',
    // Models are data, and so are the files of a hub.
    'models_directory|models\\.\\*\\.(lora\\.\\*\\.path|projector)|adoption\\..*|.*\\.mirrors\\.\\*|.*\\.token',
    // Numbers.
    'limits\\..*|models\\.\\*\\.limits\\..*'
  ].join('|')})$`
)

t.test('each setting that names a file, program, address or secret needs trust or was found harmless', async t => {
  const { root } = composeConfigSchema(builtInPlugins)
  const settings: [string[], JsonSchema][] = []
  const collect = (schema: JsonSchema, path: string[]) => {
    const inner = [
      ...Object.entries(schema.properties ?? {}),
      ...Object.values(schema.patternProperties ?? {}).map(one => ['*', one] as const),
      ...(schema.items ? [['*', schema.items] as const] : [])
    ]
    if (inner.length === 0) settings.push([path, schema])
    for (const [name, one] of inner) collect(one, [...path, name])
  }
  collect(root, [])
  const suspicious = settings.filter(([path, { format = '', pattern = '', writeOnly }]) => {
    const name = path.filter(part => part !== '*').at(-1)!
    const isNamedSo =
      /command|program|python|argument|environment|plugin|hook|script|sysroot|path|folder|director|url|endpoint|proxy|package|index|listen|address|key(?!s_|_alive)|token(?!s)|secret|redis|servers|root/i
    return /path|program|address/.test(format) || /https\?|redis/.test(pattern) || writeOnly || isNamedSo.test(name)
  })
  t.ok(suspicious.length > 30, 'there are some')
  for (const [path] of suspicious) {
    const name = path.join('.')
    const at = path.map(part => (part === '*' ? '0' : part))
    t.ok(hasMark(root, at, 'needsTrust') || HARMLESS.test(name), name)
  }
})
