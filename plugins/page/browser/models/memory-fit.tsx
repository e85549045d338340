import { formatSize } from '../parts/formats.ts'
import { pools } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'

/** Whether a model fits into memory, alone or beside the loaded models. */
export function Fit({ required, available }: { required: number; available: number }) {
  const t = texts.value
  const reserved = pools.value.reduce((sum, pool) => sum + pool.reserved, 0)
  const [text, kind] =
    required > available
      ? [fill(t.tooLarge, { size: formatSize(required - available) }), 'is-error']
      : required + reserved > available
        ? [t.fitsAlone, 'is-accent']
        : [reserved > 0 ? t.fitsBeside : t.fits, 'is-good']
  return <span class={`chip ${kind}`}>{text}</span>
}
