import t from 'tap'
import { withModelDefaults } from '../../../../core/answers/model-defaults.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { requireJinja } from '../../../../core/models/new-defaults.ts'
import { parametersText } from '../../../../plugins/apis/native/records.ts'
import { parseDigest } from '../../../../plugins/apis/ollama/models/blobs.ts'
import {
  mergedDefaults,
  modelfileText,
  parseModelfile,
  readCreateRequest
} from '../../../../plugins/apis/ollama/models/create-request.ts'
import { readCases } from '../../../support/cases.ts'

const CASES = readCases('ollama-models')

const DIGEST = `sha256:${'a'.repeat(64)}`

t.test("a model's defaults are added to conversations", t => {
  const table: [defaults: Parameters<typeof withModelDefaults>[1], asked: object[], sent: object[]][] = CASES.defaults
  for (const [defaults, asked, sent] of table)
    t.strictSame(withModelDefaults(asked, defaults ?? undefined), sent as never)
  t.end()
})

t.test('create requests are parsed', t => {
  const making = readCreateRequest({
    from: 'a/b',
    files: {},
    adapters: {},
    system: '',
    template: null,
    parameters: { stop: 'x', num_ctx: 512, seed: null },
    license: ['one', 'two'],
    messages: [{ role: 'user', content: null }, { role: 'assistant', content: 'b', thinking: 'hm' } as object as never],
    quantization: 'Q8_0'
  })
  t.strictSame(making, {
    source: { from: 'a/b' },
    defaults: {
      options: { stop: ['x'], num_ctx: 512 },
      messages: [
        { role: 'user', content: '' },
        { role: 'assistant', content: 'b' }
      ],
      license: 'one\ntwo'
    },
    quantize: 'Q8_0'
  })
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
  for (const [text, line] of [
    ['FROM x\nMESSAGE robot hi', 2],
    ['FROM x\n\nSYSTEM """never', 3],
    ['WHAT x', 1],
    ['FROM x\nPARAMETER stop', 2],
    ['{"json": 1}', 1]
  ] as const) {
    t.throws(() => parseModelfile(text), { code: 'invalid_request', message: new RegExp(`line ${line}:`) }, text)
  }

  const defaults = {
    system: 'You are\n"Leo".',
    options: { stop: ['a', ' b'], num_ctx: 512, use_mmap: false },
    license: 'MIT',
    messages: [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: '"hi"' }
    ]
  }
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
