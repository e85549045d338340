import { engines, pools } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { formatSize } from './formats.ts'
import { Facts, joinFacts, More } from './layout.tsx'

/** Number of colours in a memory bar. */
const SHADES = 4

export const poolName = (pool: string) => (pool === 'host' ? texts.value.hostMemory : pool)

/** The memory of each pool of this server, in the words that `corral ps` and docs/memory.md use too. */
export function MemoryPools() {
  const t = texts.value
  if (pools.value.length === 0) return null
  const amount = (bytes: number | undefined, word: string) => bytes !== undefined && `${formatSize(bytes)} ${word}`
  return (
    <section aria-label={texts.value.memory} class="memory-pools">
      {pools.value.map(({ pool, reserved, budget, free, used, total }) => {
        const parts = engines.value.flatMap(engine => {
          // Other nodes have pools with the same names.
          const isHere = engine.state === 'loaded' && engine.member === undefined
          const size = isHere ? (engine.memory?.[pool] ?? 0) : 0
          return size > 0 ? [{ name: engine.name, size }] : []
        })
        const known = parts.reduce((sum, { size }) => sum + size, 0)
        const whole = budget ?? Math.max(reserved, known, 1)
        const inUse =
          used !== undefined &&
          total !== undefined &&
          fill(t.usedOf, { used: formatSize(used), total: formatSize(total) })
        const label = joinFacts([amount(reserved, t.reservedMemory), amount(free, t.freeMemory), inUse])
        const name = poolName(pool)
        const widthOf = (size: number) => ({ width: `${Math.min(100, (100 * size) / whole)}%` })
        return (
          <div class="memory" key={pool}>
            <div class="row">
              <span class="grow">{name}</span>
              <span class="quiet">{label}</span>
            </div>
            <div class="bar" role="img" aria-label={`${name}: ${label}`}>
              {parts.map(({ name, size }, index) => {
                const title = `${name}: ${formatSize(size)}`
                return <span key={name} class={`shade-${index % SHADES}`} title={title} style={widthOf(size)} />
              })}
              {reserved > known && <span class="shade-reserved" style={widthOf(reserved - known)} />}
            </div>
          </div>
        )
      })}
      <More title={t.memoryWords} class="quiet">
        <Facts
          facts={[
            [t.reservedMemory, t.reservedMeans],
            [t.freeMemory, t.freeMeans],
            [t.usedMemory, t.usedMeans]
          ]}
        />
      </More>
    </section>
  )
}
