import t from 'tap'
import { parse } from 'yaml'
import { modelSettingsYaml, withModelSettings } from '../../core/config/yaml-edit.ts'

const SETTINGS = { arguments: ['--threads', '2'], ngram: true, options: { num_ctx: 2048 } }
const LINES = '  me/a:\n    arguments: [--threads, "2"]\n    ngram: true\n    options:\n      num_ctx: 2048\n'
const edit = (text: string) => withModelSettings(text, 'me/a', SETTINGS)

t.test('withModelSettings adds a section for a model without one', async t => {
  t.equal(modelSettingsYaml('me/a', SETTINGS), `models:\n${LINES}`)
  t.equal(edit(''), `models:\n${LINES}`)
  t.equal(edit('port: 1     # mine\n'), `port: 1     # mine\n\nmodels:\n${LINES}`, 'the rest is unchanged')
  t.equal(edit('port: 1'), `port: 1\n\nmodels:\n${LINES}`)
  t.equal(edit('models: {} # none\nport: 1\n'), `models: # none\n${LINES}port: 1\n`)
  t.equal(edit('models:\nport: 1\n'), `models:\n${LINES}port: 1\n`)
  const found = edit('models:\n  me/b:\n    pin: true # always\n\n# after\nport: 1   # x\n')
  t.equal(found, `models:\n  me/b:\n    pin: true # always\n${LINES}\n# after\nport: 1   # x\n`)
})

t.test('withModelSettings keeps comments, order and other settings of a section', async t => {
  const text = `port: 1    # x
models:
  # the small one
  me/a:
    # keep it
    keep_alive: 30m
    arguments: [--no-warmup] # quick
    options: {temperature: 0.2, num_ctx: 99}
  me/b: {pin: true}


# tail
log_level: info
`
  t.equal(
    edit(text),
    text.replace('[--no-warmup]', '[--threads, "2"]').replace('num_ctx: 99}', 'num_ctx: 2048}\n    ngram: true')
  )
})

t.test('withModelSettings does not change shared sections', async t => {
  const alias = 'models:\n  me/b: &shared\n    options: {temperature: 1}\n  me/a: *shared\n'
  const changed = parse(edit(alias)!, { merge: true })
  t.same(changed.models['me/b'], { options: { temperature: 1 } })
  t.same(changed.models['me/a'], { ...SETTINGS, options: { temperature: 1, num_ctx: 2048 } })
  const merge = 'models:\n  me/b: &shared\n    options: {temperature: 1}\n  me/a:\n    <<: *shared\n    ngram: false\n'
  t.same(parse(edit(merge)!, { merge: true }).models['me/a'], changed.models['me/a'])
  const actual = edit('models:\n  me/a: &shared\n    pin: true\n  me/b: *shared\n')
  t.equal(actual, undefined, 'the section belongs to another model')
})

t.test('withModelSettings supports other notations', async t => {
  const crlf = edit('# c\r\nmodels:\r\n  me/b:\r\n    pin: true # p\r\nport: 1\r\n')!
  t.notMatch(crlf.replaceAll('\r\n', ''), /\n/)
  t.match(parse(crlf), { models: { 'me/a': SETTINGS }, port: 1 })
  t.match(parse(edit('models: {me/b: {pin: true}}\nport: 1\n')!), {
    models: { 'me/a': SETTINGS, 'me/b': { pin: true } }
  })
  t.equal(edit('---\nport: 1\n...\n'), undefined)
  t.equal(edit('port: [1\n'), undefined)
  t.equal(edit('- 1\n'), undefined)
})

t.test('withModelSettings removes undefined settings', async t => {
  const remove = (text: string, settings: Record<string, unknown>) => withModelSettings(text, 'me/a', settings)
  const text =
    'models:\n  me/a:\n    pin: true # always\n    options: {num_ctx: 99, top_k: 1} # few\n  # next\n  me/b: {}\n'
  const got = remove(text, { pin: undefined, options: { top_k: undefined } })
  t.equal(got, text.replace('    pin: true # always\n', '').replace(', top_k: 1', ''))
  t.equal(remove(text, { options: undefined }), text.replace(/ {4}options.*\n/, ''))
  t.strictSame(parse(remove(text, { pin: undefined, options: undefined })!), { models: { 'me/a': {}, 'me/b': {} } })
  t.strictSame(parse(remove('port: 1\n', { pin: undefined, ngram: true })!), {
    port: 1,
    models: { 'me/a': { ngram: true } }
  })
  const merged = 'models:\n  me/b: &b {pin: true}\n  me/a: {<<: *b}\n'
  t.equal(remove(merged, { pin: undefined }), undefined, 'a setting from another model cannot be removed here')
})
