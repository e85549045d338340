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

const DIGEST = `sha256:${'a'.repeat(64)}`

t.test("a model's defaults are added to conversations", t => {
  const system = (content: string) => ({ role: 'system', content })
  const user = (content: string) => ({ role: 'user', content })
  const table: [defaults: Parameters<typeof withModelDefaults>[1], asked: object[], sent: object[]][] = [
    [undefined, [user('a')], [user('a')]],
    [{ options: { top_k: 1 } }, [user('a')], [user('a')]],
    [{ system: 'S' }, [user('a')], [system('S'), user('a')]],
    [{ system: 'S' }, [system('mine'), user('a')], [system('mine'), user('a')]],
    [
      { system: 'S' },
      [{ role: 'developer', content: 'mine' }, user('a')],
      [{ role: 'developer', content: 'mine' }, user('a')]
    ],
    [{ system: 'S' }, [user('a'), system('later')], [user('a'), system('later')]],
    [{ messages: [user('x')] }, [user('a')], [user('x'), user('a')]],
    [{ messages: [user('x')] }, [system('mine'), user('a')], [system('mine'), user('x'), user('a')]],
    [{ system: 'S', messages: [user('x')] }, [user('a')], [system('S'), user('x'), user('a')]],
    [{ system: 'S', messages: [system('T'), user('x')] }, [user('a')], [system('T'), user('x'), user('a')]],
    [{ messages: [system('T'), user('x')] }, [system('mine'), user('a')], [system('mine'), user('x'), user('a')]],
    [{ system: 'S', messages: [user('x')] }, [system('mine')], [system('mine'), user('x')]]
  ]
  for (const [defaults, asked, sent] of table) t.strictSame(withModelDefaults(asked, defaults), sent as never)
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
  for (const template of [
    '{% for message in messages %}{{ message.content }}{% endfor %}',
    "{%- for m in messages -%}{% if m.role == 'user' %}{{ m['content'] }}{% endif %}{%- endfor -%}",
    '{% for i in range(3) %}{{ range(3) }}{{ messages[i].content }}{% endfor %}',
    '{% set block = 1 %}{{ block }}{{ messages[0] }}',
    '{{ messages | tojson }}'
  ]) {
    t.doesNotThrow(() => requireJinja(template), template)
  }
  for (const template of [
    '{{ .Prompt }}',
    '{{- .System -}} {{ .Prompt }}',
    '{{ if .System }}<|system|>{{ .System }}{{ end }}',
    '{{- range $i, $_ := .Messages }}{{ $last := eq $i 0 }}{{- end }}',
    '[INST] {{ with .Messages }}{{ . }}{{ end }} [/INST]',
    '{{ template "x" . }}'
  ]) {
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
  t.strictSame(
    parseModelfile(
      [
        '# a comment',
        'from a/b:Q8_0',
        '',
        'PARAMETER temperature 0.5',
        'PARAMETER stop "<|end|>"',
        'PARAMETER stop  x y ',
        'PARAMETER use_mmap true',
        'SYSTEM """You are "Leo".',
        '',
        '  # no comment',
        '"""',
        'TEMPLATE "{{ messages }}"',
        'LICENSE one',
        'LICENSE """two"""',
        'MESSAGE user Say "hi" to me',
        'MESSAGE assistant """hi',
        'you"""',
        'RENDERER x'
      ].join('\r\n')
    ),
    {
      parameters: { temperature: 0.5, stop: ['<|end|>', 'x y'], use_mmap: true },
      from: 'a/b:Q8_0',
      system: 'You are "Leo".\n\n  # no comment\n',
      template: '{{ messages }}',
      messages: [
        { role: 'user', content: 'Say "hi" to me' },
        { role: 'assistant', content: 'hi\nyou' }
      ],
      license: ['one', 'two']
    }
  )
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
