import t from 'tap'
import { changesBetween, LiveConfig, withoutRestarts } from '../../core/config/reloader.ts'
import { composeConfigSchema } from '../../core/config/setting-schema.ts'
import { definitions, load } from './loaded-config.ts'

const { root } = composeConfigSchema(definitions)

const onlyExtra = { canReload: (name: string) => name === 'extra', canSwitch: () => false }

t.test('changesBetween lists the differences between two configurations', async t => {
  const before = await load(t, {
    yaml: `
port: 1
models: { a/b: { pin: true, options: { num_ctx: 512 } }, c/d: { lora: [{ path: x.gguf }] } }
defaults: { mirostat: 1 }
extra: { pause: 1m, secrets: [old] }
`
  })
  const after = await load(t, {
    yaml: `
host: other.example
models: { a/b: { pin: true, options: { num_ctx: 1024 } }, e/f: {} }
security: { api_keys: [secret] }
extra: { pause: 2m, secrets: [new], enabled: false }
limits: { reader_stall: 1m }
`
  })
  const changes = changesBetween(root, before, after, onlyExtra)
  const listed = changes.map(({ name, from, to, isSecret, restart }) => {
    return `${name} ${isSecret ? '(secret)' : `${JSON.stringify(from)} ${JSON.stringify(to)}`}${restart ? ' restart' : ''}`
  })
  t.same(listed.sort(), [
    'defaults.mirostat 1 undefined',
    'extra.enabled true false restart',
    'extra.pause "1m" "2m"',
    'extra.secrets (secret)',
    'host "127.0.0.1" "other.example" restart',
    'limits.reader_stall "60s" "1m"',
    'models."a/b".options.num_ctx 512 1024',
    `models."c/d".lora ${JSON.stringify(before.core.models['c/d']!.lora)} undefined`,
    'port 1 11435 restart',
    'security.api_keys (secret) restart'
  ])

  const next = withoutRestarts(after, changes)
  t.match(next.core, { host: '127.0.0.1', port: 1, limits: { reader_stall: '1m' } })
  t.same(next.core.models, after.core.models)
  t.match(next.sections, { security: { api_keys: [] }, extra: { pause: '2m', enabled: true, secrets: ['new'] } })
  t.ok(Object.isFrozen(next.core) && Object.isFrozen(next.sections.extra))
  t.same(
    changesBetween(root, next, after, onlyExtra).map(({ name }) => name),
    ['host', 'port', 'security.api_keys', 'extra.enabled'],
    'settings that need a restart continue to differ'
  )
  const found = changesBetween(root, after, after, onlyExtra)
  t.same(found, [])
})

t.test('the view of a live configuration returns the current values', async t => {
  const [before, after] = [await load(t, { yaml: 'port: 1\n' }), await load(t, { yaml: 'limits: { n: 1 }\n' })]
  const live = new LiveConfig(before)
  const { core } = live.view
  t.same({ ...core }, before.core)
  live.current = after
  t.same({ ...core }, after.core)
  t.equal(core.limits, after.core.limits, 'without copying them')
  t.throws(() => Object.assign(core, { port: 2 }))
})
