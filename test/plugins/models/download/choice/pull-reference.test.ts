import t from 'tap'
import { type PullReference, parsePullReference } from '../../../../../plugins/models/download/choice/pull-reference.ts'

const HUBS = [
  { name: 'huggingface', prefixes: ['hf:', 'hf.co/', 'huggingface.co/', 'https://huggingface.co/', 'https://hf.co/'] },
  { name: 'csghub', prefixes: ['csghub:', 'https://hub.opencsg.com/'] },
  { name: 'modelscope', prefixes: ['modelscope:', 'https://modelscope.cn/'] },
  { name: 'corral', prefixes: ['corral://', 'corral:'] },
  { name: 'url', prefixes: ['https://', 'http://'] }
]

t.test('parses names and addresses of pulls', t => {
  const N = { id: 'Qwen/Qwen3-0.6B-GGUF', name: { owner: 'Qwen', name: 'Qwen3-0.6B-GGUF' } }
  const hf = { hub: 'huggingface', ...N }
  const table: [text: string, reference: PullReference][] = [
    ['Qwen/Qwen3-0.6B-GGUF', N],
    ['  Qwen/Qwen3-0.6B-GGUF ', N],
    ['Qwen/Qwen3-0.6B-GGUF:Q8_0', { ...N, variant: 'Q8_0' }],
    ['Qwen/Qwen3-0.6B-GGUF:latest', N],
    ['Qwen/Qwen3-0.6B-GGUF:LATEST@v1', { ...N, revision: 'v1' }],
    ['Qwen/Qwen3-0.6B-GGUF@main', { ...N, revision: 'main' }],
    ['Qwen/Qwen3-0.6B-GGUF:Q8_0@refs/pr/1', { ...N, variant: 'Q8_0', revision: 'refs/pr/1' }],
    ['Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf', { ...N, variant: 'Qwen3-0.6B-Q8_0.gguf' }],
    ['Qwen/Qwen3-0.6B-GGUF:Q8_0/a-00001-of-00002.gguf', { ...N, variant: 'Q8_0/a-00001-of-00002.gguf' }],
    ['hf:Qwen/Qwen3-0.6B-GGUF', hf],
    ['HF:Qwen/Qwen3-0.6B-GGUF:q8_0', { ...hf, variant: 'q8_0' }],
    ['hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0', { ...hf, variant: 'Q8_0' }],
    ['hf:Qwen/Qwen3-0.6B-GGUF:Q8_0/a.gguf@main', { ...hf, variant: 'Q8_0/a.gguf', revision: 'main' }],
    ['csghub:Qwen/Qwen3-0.6B-GGUF@master', { ...N, hub: 'csghub', revision: 'master' }],
    ['modelscope:Qwen/Qwen3-0.6B-GGUF', { ...N, hub: 'modelscope' }],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF', hf],
    ['HTTPS://HuggingFace.co/Qwen/Qwen3-0.6B-GGUF/', hf],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF:Q8_0', { ...hf, variant: 'Q8_0' }],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF?library=llama.cpp#x', hf],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF?show_file_info=a-Q8_0.gguf', { ...hf, file: 'a-Q8_0.gguf' }],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/tree/main', { ...hf, revision: 'main' }],
    [
      'https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/tree/main/UD-Q4_K_XL',
      { ...hf, revision: 'main', variant: 'UD-Q4_K_XL' }
    ],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/tree/refs%2Fpr%2F2', { ...hf, revision: 'refs/pr/2' }],
    [
      'https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/resolve/main/a.gguf?download=true',
      { ...hf, revision: 'main', file: 'a.gguf' }
    ],
    [
      'https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/blob/refs/pr/2/Q8_0/a%20b.gguf',
      { ...hf, revision: 'refs/pr/2', file: 'Q8_0/a b.gguf' }
    ],
    ['huggingface.co/Qwen/Qwen3-0.6B-GGUF/blob/main/a.gguf', { ...hf, revision: 'main', file: 'a.gguf' }],
    ['hf.co/Qwen/Qwen3-0.6B-GGUF/a.gguf', { ...hf, file: 'a.gguf' }],
    ['https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/discussions/3', hf],
    ['https://hub.opencsg.com/models/Qwen/Qwen3-0.6B-GGUF', { ...N, hub: 'csghub' }],
    [
      'https://hub.opencsg.com/csg/Qwen/Qwen3-0.6B-GGUF/resolve/main/a.gguf',
      { ...N, hub: 'csghub', revision: 'main', file: 'a.gguf' }
    ],
    ['https://modelscope.cn/models/Qwen/Qwen3-0.6B-GGUF/files', { ...N, hub: 'modelscope' }],
    [
      'https://modelscope.cn/models/Qwen/Qwen3-0.6B-GGUF/file/view/master/a.gguf?status=2',
      { ...N, hub: 'modelscope', revision: 'master', file: 'a.gguf' }
    ],
    [
      'https://modelscope.cn/api/v1/models/Qwen/Qwen3-0.6B-GGUF/repo?Revision=master&FilePath=Q8%2Fa.gguf',
      { ...N, hub: 'modelscope', revision: 'master', file: 'Q8/a.gguf' }
    ],
    [
      'corral://box.local:11435/Qwen/Qwen3-0.6B-GGUF',
      { ...N, hub: 'corral', id: 'box.local:11435/Qwen/Qwen3-0.6B-GGUF' }
    ],
    [
      'corral://[::1]:11435/Qwen/Qwen3-0.6B-GGUF:Q8_0',
      { ...N, hub: 'corral', id: '[::1]:11435/Qwen/Qwen3-0.6B-GGUF', variant: 'Q8_0' }
    ],
    ['corral:Qwen/Qwen3-0.6B-GGUF', { ...N, hub: 'corral' }],
    ['https://example.org/a.gguf?sig=a:b@c', { hub: 'url', id: 'https://example.org/a.gguf?sig=a:b@c' }]
  ]
  for (const [text, reference] of table) t.same(parsePullReference(text, HUBS), reference, text)
  t.same(parsePullReference('Qwen/Qwen3-0.6B-GGUF', []), N, 'names need no hub')
  t.end()
})

t.test('refuses invalid names and addresses', t => {
  const table: [text: unknown, code: string, message: RegExp][] = [
    [undefined, 'invalid_model_name', /missing/],
    [7, 'invalid_model_name', /missing/],
    ['', 'invalid_model_name', /missing/],
    ['gpt2', 'invalid_model_name', /owner is missing/],
    ['hf:gpt2', 'invalid_model_name', /owner is missing/],
    ['hf:gpt2@main', 'invalid_model_name', /./],
    ['a/', 'invalid_model_name', /a part is empty/],
    ['/b', 'invalid_model_name', /a part is empty/],
    ['a/b/c', 'invalid_model_name', /each part/],
    ['a/b/resolve/main/c.gguf', 'invalid_model_name', /each part/],
    ['../b', 'invalid_model_name', /./],
    ['a/..', 'invalid_model_name', /./],
    ['a/b..c', 'invalid_model_name', /"\.\." is not allowed/],
    ['a/b\u0000', 'invalid_model_name', /./],
    ['a/nul', 'invalid_model_name', /reserved by Windows/],
    ['a\\b/c', 'invalid_model_name', /./],
    [`a/${'b'.repeat(97)}`, 'invalid_model_name', /longer/],
    ['a/b:', 'invalid_model_name', /neither a label/],
    ['a/b:../x.gguf', 'invalid_model_name', /neither a label/],
    ['a/b:/etc/passwd', 'invalid_model_name', /neither a label/],
    ['a/b:c\\d', 'invalid_model_name', /neither a label/],
    ['a/b:Q4:Q8', 'invalid_model_name', /neither a label/],
    ['a/b:Q4\n@x', 'invalid_model_name', /neither a label/],
    ['a/b@', 'invalid_request', /revision/],
    ['a/b@../x', 'invalid_request', /revision/],
    ['a/b@x//y', 'invalid_request', /revision/],
    ['a/b@main:Q8_0', 'invalid_request', /<variant>@<revision>/],
    ['a/b@main?x', 'invalid_request', /revision/],
    [
      'ollama:a/b',
      'invalid_request',
      /"ollama:", which is not the prefix of an enabled hub \(those are hf:, csghub:, modelscope:, corral:\/\/, corral:, https:\/\/, http:\/\/\)/
    ],
    ['ftp://x/a/b', 'invalid_request', /"ftp:\/\/"/],
    ['C:\\models\\a.gguf', 'invalid_request', /./],
    ['https://huggingface.co/Qwen', 'invalid_model_name', /owner is missing/],
    ['https://huggingface.co/datasets/a/b', 'invalid_model_name', /is not a model/],
    ['https://huggingface.co/spaces/a/b', 'invalid_model_name', /is not a model/],
    ['https://huggingface.co/a/b/c/d', 'invalid_model_name', /more after the name/],
    ['https://huggingface.co/a/b/resolve/main/..%2Fx', 'invalid_request', /path of a file/],
    ['https://huggingface.co/a/b/resolve/main/%zz', 'invalid_request', /% signs/],
    ['https://huggingface.co/a/b/resolve', 'invalid_request', /revision/],
    ['corral://host', 'invalid_model_name', /<host>:<port>/],
    ['corral://user:secret@host/a/b', 'invalid_model_name', /./],
    ['corral://host/a', 'invalid_model_name', /owner is missing/]
  ]
  for (const [text, code, message] of table) {
    t.throws(() => parsePullReference(text, HUBS), { code, message, param: 'model' }, String(text))
  }
  t.throws(() => parsePullReference('https://example.org/a.gguf', HUBS.slice(0, 3)), { code: 'invalid_request' })
  t.end()
})
