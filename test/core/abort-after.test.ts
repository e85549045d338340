import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { test } from 'tap'
import { abortAfter } from '../../core/system/abort-after.ts'
import { until } from '../support/corral.ts'

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

test('a limit comes though garbage is collected before, among other signals too', async t => {
  const never = new AbortController()
  const reasons: string[] = []
  for (const make of [() => abortAfter(300), () => AbortSignal.any([never.signal, abortAfter(300)])]) {
    make().addEventListener('abort', event => reasons.push((event.target as AbortSignal).reason.name))
  }
  // Garbage of a turn that is over.
  setTimeout(collectGarbage, 50)
  await until('both limits have come', () => reasons.length === 2)
  t.strictSame(reasons, ['TimeoutError', 'TimeoutError'])
})
