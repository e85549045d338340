import { useRef, useState } from 'preact/hooks'
import type { CardReply, PlanReply } from '../../../../core/contracts/native-records.ts'
import { Markdown, ReadmeAddress } from '../chat/markdown-view.tsx'
import { attempt, notify } from '../parts/controls.tsx'
import { formatSize } from '../parts/formats.ts'
import { Actions, Button } from '../parts/forms.tsx'
import { Fault, joinFacts } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { models } from '../state/server-state.ts'
import { fill, labelFor, texts } from '../texts/texts.ts'
import { Fit } from './memory-fit.tsx'

/** What a repository says about itself, its variants, and the download of one. */
export function RepositoryCard({ reference, onDone }: { reference: string; onDone: () => void }) {
  const t = texts.value
  const [variant, setVariant] = useState('')
  const source = variant ? `${withoutVariant(reference)}:${variant}` : reference
  const { reply: plan, fault } = useReply<PlanReply>('api/pull', { model: source, dry_run: true })
  const { reply: card } = useReply<CardReply>('api/card', { model: reference })
  /** Sizes by label, and the label that the server has chosen. */
  const { current: known } = useRef({ sizes: new Map<string, number>(), best: '' })
  if (plan && variant === '' && reference === withoutVariant(reference)) known.best = plan.label
  const listed = [
    ...(plan ? [{ label: plan.label, size: plan.size }, ...plan.choices] : []),
    // The name may match several models of the repository.
    ...((fault?.body.choices ?? []) as PlanReply['choices'])
  ]
  for (const { label, size } of listed) if (!known.sizes.has(label)) known.sizes.set(label, size)
  if (!plan && known.sizes.size === 0) return fault ? <Fault text={fault.message} /> : <p class="quiet">{t.loading}</p>
  return (
    <>
      {card && (
        <>
          <p class="quiet">
            <a href={card.address} target="_blank" rel="noreferrer noopener" children={card.address} />
          </p>
          <div class="row">
            {[...card.capabilities.map(each => labelFor(t.capabilities, each)), card.license].map(
              fact => fact && <span key={fact} class="chip" children={fact} />
            )}
          </div>
        </>
      )}
      <fieldset class="choices">
        <legend>{plan ? t.variants : t.severalModels}</legend>
        {[...known.sizes]
          .sort(([a, size], [b, other]) => size - other || (a < b ? -1 : 1))
          .map(([label, size]) => (
            <label key={label} class="choice">
              <input type="radio" name="variant" checked={label === plan?.label} onChange={() => setVariant(label)} />
              <span class="grow">
                {label}{' '}
                <small class="quiet">{joinFacts([qualityText(label), label === known.best && t.bestHere])}</small>
              </span>
              <small>{formatSize(size)}</small>
              {plan && <Fit required={estimate(size, plan)} available={plan.memory.available} />}
            </label>
          ))}
      </fieldset>
      <Fault text={fault?.message} />
      {plan && <Download plan={plan} source={source} onDone={onDone} />}
      {card?.readme && (
        <section class="readme" aria-label={t.description}>
          <ReadmeAddress.Provider value={card.readme_address}>
            <Markdown text={card.readme} isComplete />
          </ReadmeAddress.Provider>
        </section>
      )}
      {card && !card.readme && <p class="quiet">{t.noDescription}</p>}
    </>
  )
}

function Download({ plan, source, onDone }: { plan: PlanReply; source: string; onDone: () => void }) {
  const t = texts.value
  const { disk, model, present } = plan
  const isHere = present || models.value.some(({ name }) => name.toLowerCase() === model.toLowerCase())
  const download = () =>
    attempt(async () => {
      await ask('POST', 'api/pull', { body: { model: source, detach: true } })
      notify(fill(t.downloadBegun, { model }))
      onDone()
    })
  return (
    <>
      <p>{plan.reason}</p>
      {plan.warnings.map(warning => (
        <Fault key={warning} text={warning} />
      ))}
      {!disk.fits && (
        <Fault
          text={fill(t.diskFull, { required: formatSize(disk.required), available: formatSize(disk.available) })}
        />
      )}
      <Actions>
        {isHere && <span class="chip is-good">{t.isHere}</span>}
        <Button
          kind="main"
          disabled={!disk.fits || present}
          onClick={download}
          text={fill(t.downloadOf, { size: formatSize(plan.size) })}
        />
      </Actions>
    </>
  )
}

/** Estimates the memory of a variant from the overhead of the chosen one. */
const estimate = (size: number, { size: known, memory }: PlanReply) => size + Math.max(0, memory.required - known)

/** Describes the quality of a quantization by the bits in its name, as in `UD-Q4_K_XL`. */
function qualityText(label: string): string | undefined {
  const bits = Number(/(?:^|[-_])(?:I?Q|TQ|MXFP|NVFP|B?FP?)(\d{1,2})(?![^_-])/i.exec(label)?.[1])
  return Object.entries(texts.value.qualities).findLast(([lowest]) => Math.max(2, bits) >= Number(lowest))?.[1]
}

/** Removes the variant from a reference: `hf:owner/name:Q4_K_M` becomes `hf:owner/name`. */
const withoutVariant = (reference: string) => reference.replace(/(\/[^/:@]+):[^/:@]+/, '$1')
