import { existsSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { modelArchitectures, supportedArchitectures } from '../../../../plugins/models/conversion/dtypes.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'

t.test('supported architectures are read from the converter source', async t => {
  const folder = join(engineBuildFolder(), 'converter')
  if (existsSync(folder)) {
    const real = await supportedArchitectures(folder)
    t.ok(real && real.size > 100)
    for (const name of ['LlamaForCausalLM', 'BertModel']) t.ok(real!.has(name), name)
    for (const name of ['WhisperForConditionalGeneration', 'llama']) t.notOk(real!.has(name), name)
  }
  const old =
    '@ModelBase.register(\n    "AForCausalLM",\n    "BModel")\nclass A:\n    pass\n@Model.register("C")\nclass C:\n'
  const dir = t.testdir({ old: { 'convert_hf_to_gguf.py': old }, unknown: { 'convert_hf_to_gguf.py': 'print(1)' } })
  t.same(await supportedArchitectures(join(dir, 'old')), new Set(['AForCausalLM', 'BModel', 'C']))
  for (const name of ['unknown', 'absent']) t.equal(await supportedArchitectures(join(dir, name)), undefined, name)
})

t.test("a model's architectures come from its config.json and its text model", async t => {
  for (const [config, expected] of [
    [{ architectures: ['A', 'B'] }, ['A']],
    [{ architectures: ['A'], text_config: { architectures: ['B'] } }, ['A', 'B']],
    [{ architectures: [5] }, []],
    [{ architectures: 'A' }, []],
    [[], []],
    [undefined, []]
  ] as const) {
    t.same(modelArchitectures(config), expected, JSON.stringify(config))
  }
})
