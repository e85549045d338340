import t from 'tap'
import { isMoving, StateCollector } from '../../../../plugins/apis/native/events/state-collector.ts'
import { until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'

const never = undefined as never
const others = {
  engines: never,
  catalog: never,
  scheduler: never,
  downloads: never,
  runtimes: never,
  config: never,
  drain: () => never
}
const hardware = { known: () => undefined, readings: async () => [] }

t.test('conversions have their progress', async t => {
  const variant = { key: 'me/finetune:f32', publicName: 'me/finetune', name: 'me/finetune', label: 'f32' }
  const running = [
    { variant, dtype: 'q4_k_m', progress: { phase: 'queued', subject: '' } },
    { variant, dtype: 'f16', progress: { phase: 'converting', subject: '', fraction: 0.1278 } }
  ]
  const records = new StateCollector({ ...others, hardware, conversion: { running: () => running } as never })
  const seen = records.of('conversion', 0)
  t.match(each(seen, 'value'), [
    { dtype: 'q4_k_m', status: 'queued' },
    { dtype: 'f16', status: 'converting 12%', progress: 0.12 }
  ])
  t.equal(new Set(seen.map(({ key }) => key)).size, 2)
  t.ok(seen.every(isMoving), 'conversions are polled frequently')
})

t.test('GPU sensors are read only if there are GPUs, rarely, and one read at a time', async t => {
  const gpu = { id: 'nvidia:0', name: 'NVIDIA H100 80GB HBM3' }
  let calls = 0
  let known: object | undefined
  let temperature = 40
  const records = new StateCollector({
    ...others,
    conversion: never,
    hardware: {
      known: () => known as never,
      readings: async () => {
        calls += 1
        return [{ ...gpu, temperature: temperature++ }]
      }
    }
  })
  t.strictSame(records.of('gpu', performance.now()), [])
  known = { gpus: [] }
  t.strictSame(records.of('gpu', performance.now()), [])
  t.equal(calls, 0, 'there are no GPUs to read')
  known = { gpus: [gpu] }
  records.of('gpu', performance.now())
  records.of('gpu', performance.now())
  await until('the sensors were read', () => records.of('gpu', performance.now()).length > 0)
  t.equal(calls, 1)
  const [seen] = records.of('gpu', performance.now())
  t.strictSame(seen, { topic: 'gpu', key: gpu.id, value: { name: gpu.name, temperature: 40 }, access: 'operator' })
  records.of('gpu', performance.now() + 60_000)
  await until('the sensors were read again', () => records.of('gpu', performance.now())[0] !== seen)
  t.equal(calls, 2)
})
