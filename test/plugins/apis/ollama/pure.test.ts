import t from 'tap'
import { shortened } from '../../../../core/answers/embedding.ts'
import { withModelDefaults } from '../../../../core/answers/engine-fields.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { httpOrigin, readListen } from '../../../../core/http/listening.ts'
import { parseModelName, type RequestedName } from '../../../../core/models/model-name.ts'
import { requireJinja } from '../../../../core/models/new-defaults.ts'
import { parametersText } from '../../../../plugins/apis/native/records.ts'
import { parseDigest } from '../../../../plugins/apis/ollama/models/blobs.ts'
import {
  mergedDefaults,
  modelfileText,
  parseModelfile,
  readCreateRequest
} from '../../../../plugins/apis/ollama/models/create-request.ts'
import {
  displayName,
  mapListenerPath,
  newName,
  OLLAMA_VERSION,
  ollamaNaming,
  withOllamaMessage
} from '../../../../plugins/apis/ollama/routes.ts'
import { cutTokens } from '../../../../runtimes/llama-server/calls.ts'
import { readCases } from '../../../support/cases.ts'

const CASES = readCases('ollama')

function variant(name: string, label = 'Q8_0', more: Partial<StoredVariant> = {}): StoredVariant {
  const [owner = '', bare = ''] = name.split('/')
  return {
    key: `${name}:${label}`.toLowerCase(),
    model: { owner, name: bare, variant: label },
    label,
    isDefault: true,
    origin: { kind: 'hub', from: `huggingface:${name}` },
    ...more
  } as StoredVariant
}

const STORED = [
  variant('corral/tiny-chat', 'F16', { origin: { kind: 'bundled', from: 'corral' } }),
  variant('corral/tiny-chat', 'Q8_0', { isDefault: false }),
  variant('Qwen/Big', 'Q4_K_M'),
  variant('Qwen/Big', 'Q8_0', { isDefault: false }),
  variant('other/big', 'Q8_0'),
  variant('library/made', 'Q8_0', { origin: { kind: 'import', from: '/x' } }),
  variant('someone/made', 'Q8_0')
]
const same = (a: string, b: string) => a.toLowerCase() === b.toLowerCase()
const variantsOf = (name: RequestedName) =>
  STORED.filter(
    ({ model }) => same(model.name, name.name) && (name.owner === undefined || same(model.owner, name.owner))
  )
/** Finds the first model of a name, because resolving short names is tested elsewhere. */
const storage = {
  variants: variantsOf,
  find: (name: RequestedName) =>
    variantsOf(name).find(({ label, isDefault }) => (name.variant ? same(label, name.variant) : isDefault))
}

t.test('names are shown with tags', t => {
  t.same(STORED.map(displayName), CASES.names)
  t.same(newName('mine'), { owner: 'library', name: 'mine' })
  t.same(newName('mine:v2'), { owner: 'library', name: 'mine', variant: 'v2' })
  t.same(newName('me/mine:latest'), { owner: 'me', name: 'mine' })
  t.end()
})

t.test('a deletion means exactly one model', t => {
  const tagged = variant('library/tagged', 'v1', { origin: { kind: 'made', from: 'x', tag: 'v1' } })
  const variants = (name: RequestedName) => (name.name === 'tagged' ? [tagged] : storage.variants(name))
  const { toDelete } = ollamaNaming({ ...storage, variants, listedNames: () => [] })
  const table: [asked: string, owner: string, name: string, label?: string][] = CASES.deleted
  for (const [asked, owner, name, label] of table) {
    t.same(toDelete!(parseModelName(asked)), { owner, name, ...(label && { variant: label }) }, asked)
  }
  t.throws(() => toDelete!(parseModelName('library/tagged')), { code: 'model_not_found', message: /only tagged:v1/ })
  t.end()
})

t.test('a pull maps names to hubs', t => {
  const { atHub } = ollamaNaming({ ...storage, listedNames: () => [] })
  const table: [asked: string, source: string | null][] = CASES.pulled
  for (const [asked, source] of table) t.equal(atHub!(asked), source ?? undefined, asked)
  t.end()
})

const LISTEN = { setting: 'api-ollama.listen', served: "Ollama's clients are", path: '/ollama', example: 11434 }

t.test('the Ollama API parses the listen address and maps its paths', t => {
  t.same(readListen('127.0.0.1:11434', 11435, LISTEN), { host: '127.0.0.1', port: 11434 })
  t.same(readListen('[::1]:0', 11435, LISTEN), { host: '::1', port: 0 })
  t.same(readListen('localhost:1', 11435, LISTEN), { host: 'localhost', port: 1 })
  t.equal(readListen('', 11435, LISTEN), undefined)
  for (const text of ['11434', ':11434', '127.0.0.1', '127.0.0.1:99999', '[::1', '::1:80', '[nix]:80', 'a b:1']) {
    t.throws(
      () => readListen(text, 11435, LISTEN),
      { name: 'ConfigError', message: /not an address with a port/ },
      text
    )
  }
  t.throws(() => readListen('127.0.0.1:11435', 11435, LISTEN), { name: 'ConfigError', message: /the server's own/ })
  t.equal(httpOrigin({ host: '::1', port: 5 }), 'http://[::1]:5')
  const table: [url: string, path: string][] = CASES.paths
  for (const [url, path] of table) t.equal(mapListenerPath(url), path, url)
  t.end()
})

t.test('errors contain the words and numbers that clients look for', t => {
  const missing = new CorralError('model_not_found', 'There is no model "a/b" here.', { param: 'model' })
  t.match(withOllamaMessage(missing, { model: '', name: 'b' }), {
    code: 'model_not_found',
    message: /^model 'b' not found\. There is no/,
    param: 'model'
  })
  t.match(withOllamaMessage(missing, { model: 'new', from: 'b' }), { message: /^model 'b' not found/ })
  t.equal(withOllamaMessage(missing, undefined), missing)
  const long = new CorralError('context_exceeded', 'The prompt has 8 tokens.', { details: { n_ctx: 3 } })
  const exceeded = {
    message: 'the input length exceeds the context length. The prompt has 8 tokens.',
    details: { n_ctx: 3 }
  }
  t.match(withOllamaMessage(long, { model: 'b', messages: [] }), exceeded)
  t.match(withOllamaMessage(long, { model: 'b', input: 'x', truncate: false }), exceeded)
  t.match(withOllamaMessage(long, { model: 'b', input: 'x' }), {
    message: /^input after truncation exceeds maximum context /
  })
  const other = new CorralError('invalid_request', 'No.')
  t.equal(withOllamaMessage(other, { model: 'b' }), other)
  const parts = OLLAMA_VERSION.split('.')
  t.ok(parts.length === 3 && parts.every(part => /^\d+$/.test(part)), 'each part of the version is a number')
  const [major, minor, patch] = parts.map(Number) as [number, number, number]
  t.ok(major * 1e6 + minor * 1e3 + patch >= 6004, 'VS Code requires 0.6.4')
  t.end()
})

t.test('texts to embed are truncated, and embeddings shortened', t => {
  t.same(cutTokens([1, 10, 11, 12, 13, 2], [10, 11, 12, 13], 4), [1, 10, 11, 2], 'the first and last tokens are kept')
  t.same(cutTokens([1, 10, 11, 12], [10, 11, 12], 2), [1, 10])
  t.same(cutTokens([10, 11, 12], [10, 11, 12], 2), [10, 11])
  t.same(cutTokens([1, 10, 11, 2], [10, 11], 1), [1, 2], 'at least the special tokens are kept')
  t.same(shortened([3, 4, 12], 2), [0.6, 0.8])
  t.same(shortened([3, 4]), [0.6, 0.8])
  t.same(shortened([3, 4], 9), [0.6, 0.8])
  t.same(shortened([0, 0]), [0, 0])
  t.throws(() => shortened([1, Number.NaN]), { code: 'internal' })
  t.end()
})

const DIGEST = `sha256:${'a'.repeat(64)}`

t.test("a model's defaults are added to conversations", t => {
  const table: [defaults: Parameters<typeof withModelDefaults>[1], asked: object[], sent: object[]][] = CASES.defaults
  for (const [defaults, asked, sent] of table)
    t.strictSame(withModelDefaults(asked, defaults ?? undefined), sent as never)
  t.end()
})

t.test('create requests are parsed', t => {
  const making = readCreateRequest(CASES.create)
  t.strictSame(making, CASES.created)
  t.match(readCreateRequest({ files: { 'a.gguf': DIGEST.replace(':', '-') } }).source, {
    files: [{ name: 'a.gguf', sha256: 'a'.repeat(64) }]
  })
  t.match(readCreateRequest({ modelfile: 'FROM a/b\nSYSTEM old', system: 'new' }).defaults, { system: 'new' })
  t.strictSame(readCreateRequest({ modelfile: 'FROM a/b' }).defaults, {})
  for (const [request, param] of [
    [{}, 'from'],
    [{ from: 'a', files: { a: DIGEST } }, 'files'],
    [{ files: { a: 'sha1:x' } }, 'files'],
    [{ from: 'a', adapters: { a: DIGEST } }, 'adapters'],
    [{ from: 'a', parameters: { temperature: 'hot' } }, 'temperature'],
    [{ from: 'a', messages: [{ role: 'assistant' as const, tool_calls: [{}] }] }, 'messages.0.tool_calls'],
    [{ from: 'a', template: '{{ .Prompt }}' }, 'template'],
    [{ from: 'a', system: 'x'.repeat(1_000_001) }, 'system'],
    [{ from: 'a', parameters: { stop: 'x'.repeat(1_000_001) } }, 'parameters']
  ] as const) {
    t.throws(() => readCreateRequest(request as never), { name: 'CorralError', param })
  }
  t.throws(() => parseDigest('sha256:../../x', 'digest'), { code: 'invalid_request', param: 'digest' })
  t.end()
})

t.test('defaults of a new model override those of its source', t => {
  t.equal(mergedDefaults(undefined, {}), undefined)
  t.strictSame(mergedDefaults({ system: 'a', license: 'l' }, { system: 'b' }), { system: 'b', license: 'l' })
  t.strictSame(
    mergedDefaults({ options: { max_tokens: 5, top_k: 1 } }, { options: { num_predict: 9 } }),
    { options: { top_k: 1, num_predict: 9 } },
    'another spelling is the same option'
  )
  t.strictSame(mergedDefaults({ template: 't' }, { options: { seed: 1 } }), { template: 't', options: { seed: 1 } })
  t.end()
})

t.test('only Jinja chat templates are accepted', t => {
  for (const template of CASES.jinja) {
    t.doesNotThrow(() => requireJinja(template), template)
  }
  for (const template of CASES.go) {
    t.throws(() => requireJinja(template), { code: 'unsupported_capability', message: /Go/ }, template)
  }
  for (const template of ['hello', '{{ content }}', 'messages']) {
    t.throws(() => requireJinja(template), { code: 'invalid_request', param: 'template' }, template)
  }
  t.end()
})

t.test('malicious and oversized templates and Modelfiles are refused quickly', t => {
  const long = 999_000
  for (const template of [
    '{{'.repeat(long / 2),
    '{%'.repeat(long / 2),
    `{{${' '.repeat(long - 2)}`,
    '{{ end '.repeat(100_000)
  ]) {
    t.throws(() => requireJinja(template), { message: /template/ }, template.slice(0, 10))
  }
  for (const modelfile of [
    `FROM${' '.repeat(long)}\r x\r\nWHAT`,
    `PARAMETER stop${' '.repeat(long)}\u2028`,
    `FROM x\nSYSTEM """${'a\n'.repeat(long)}`,
    `SYSTEM ""\n${'MESSAGE user a\n'.repeat(100_000)}`,
    `${'PARAMETER stop a\n'.repeat(200_000)}WHAT`,
    `${`FROM @${DIGEST}\n`.repeat(40_000)}WHAT`
  ]) {
    t.throws(() => readCreateRequest({ modelfile }), { message: /Modelfile|from|stop/i }, modelfile.slice(0, 20))
  }
  const from = 'a/b'
  const many = Object.fromEntries(Array.from({ length: 2001 }, (_, n) => [`${n}.gguf`, DIGEST]))
  for (const [request, param] of [
    [{ from, template: `{{ messages }}${'x'.repeat(1_000_000)}` }, 'template'],
    [{ from, system: 'x'.repeat(1_000_001) }, 'system'],
    [{ from, messages: Array.from({ length: 40_000 }, () => ({ role: 'user' as const, content: 'a' })) }, 'messages'],
    [{ from, license: Array.from({ length: 600_000 }, () => 'a') }, 'license'],
    [{ from, parameters: { stop: Array.from({ length: 400_000 }, () => 'a') } }, 'parameters'],
    [{ modelfile: 'x'.repeat(5_000_001) }, 'modelfile'],
    [{ files: many }, 'files']
  ] as const) {
    t.throws(() => readCreateRequest(request as never), { code: 'invalid_request', param }, param)
  }
  t.end()
})

t.test('Modelfiles are parsed and formatted', t => {
  t.strictSame(parseModelfile(CASES.modelfile.join('\r\n')), CASES.parsedModelfile)
  t.strictSame(parseModelfile(`FROM @${DIGEST}\nFROM @${DIGEST}\nADAPTER @${DIGEST}`), {
    parameters: {},
    files: { 'model-1': DIGEST, 'model-2': DIGEST },
    adapters: { [`@${DIGEST}`]: DIGEST }
  })
  for (const [text, line] of CASES.badModelfiles) {
    t.throws(() => parseModelfile(text), { code: 'invalid_request', message: new RegExp(`line ${line}:`) }, text)
  }

  const defaults = CASES.formatted
  const variant = {
    defaults,
    metadata: { chatTemplate: '{% for m in messages %}\n{% endfor %}', capabilities: [], info: {} }
  }
  const text = modelfileText(variant as unknown as StoredVariant, 'me/leo:latest')
  t.match(readCreateRequest({ modelfile: text }), {
    source: { from: 'me/leo:latest' },
    defaults: { ...defaults, template: variant.metadata.chatTemplate }
  })
  t.equal(
    parametersText(defaults.options),
    [
      'stop                           "a"',
      'stop                           " b"',
      'num_ctx                        512',
      'use_mmap                       false'
    ].join('\n')
  )
  t.equal(parametersText(undefined), '')
  t.end()
})
