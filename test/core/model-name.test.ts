import t from 'tap'
import { bareName, modelKey, parseModelName } from '../../core/models/model-name.ts'
import { readCases } from '../support/fixture.ts'

t.test('parseModelName accepts valid names', t => {
  t.same(parseModelName('corral/tiny-chat'), { owner: 'corral', name: 'tiny-chat' })
  t.same(parseModelName('Qwen/Qwen3-0.6B-GGUF:Q4_K_M'), { owner: 'Qwen', name: 'Qwen3-0.6B-GGUF', variant: 'Q4_K_M' })
  t.same(parseModelName('a/b:latest'), { owner: 'a', name: 'b' })
  t.same(parseModelName('a/b:LATEST'), { owner: 'a', name: 'b' })
  t.equal(modelKey(parseModelName('Qwen/Qwen3:Q8_0')), 'qwen/qwen3')
  t.equal(bareName(parseModelName('Qwen/Qwen3:Q8_0')), 'Qwen/Qwen3')
  t.end()
})

t.test('parseModelName refuses invalid names', t => {
  const refused: unknown[] = readCases('core-cases.yaml', 'wrongModelNames')
  for (const name of refused) {
    t.throws(() => parseModelName(name), { code: 'invalid_model_name', status: 400 }, JSON.stringify(name))
  }
  t.equal(parseModelName(`${'a'.repeat(96)}/b`).owner.length, 96)
  t.end()
})
