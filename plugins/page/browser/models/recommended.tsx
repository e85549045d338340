import { useState } from 'preact/hooks'
import type { Recommendation } from '../../../../core/contracts/native-records.ts'
import { formatSize } from '../parts/formats.ts'
import { Button, Choices } from '../parts/forms.tsx'
import { Card, Fault } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { models } from '../state/server-state.ts'
import { fill, shownLanguage, texts } from '../texts/texts.ts'
import { Fit } from './memory-fit.tsx'

/** Models for each purpose, by their size for this machine. They come from their publishers. */
export function Recommended({ onChoose }: { onChoose: (model: string) => void }) {
  const t = texts.value
  const { reply, fault } = useReply<{ models: Recommendation[] }>('api/recommended')
  const [purpose, setPurpose] = useState<Recommendation['purpose']>('chat')
  const [isWhole, setWhole] = useState(false)
  const all = (reply?.models ?? []).filter(model => model.purpose === purpose)
  const shown = isWhole ? all : all.filter(({ memory }) => memory.fits)
  const isHere = (model: string) => models.value.some(({ name }) => name.toLowerCase().startsWith(model.toLowerCase()))
  return (
    <section class="recommended" aria-label={t.recommended}>
      <h2>{t.recommended}</h2>
      <Choices label={t.purpose} names={t.purposes} chosen={purpose} onChoose={setPurpose} />
      <Fault text={fault?.message} />
      {reply && shown.length === 0 && <p class="quiet">{t.noneFits}</p>}
      {Object.entries(t.sizeClasses).map(([sizeClass, title]) => {
        const inClass = shown.filter(({ size_class }) => size_class === sizeClass)
        if (inClass.length === 0) return null
        return (
          <section key={sizeClass} aria-label={title}>
            <p class="quiet">{title}</p>
            <ul class="plain-list">
              {inClass.map(({ model, size, license, about, memory }) => (
                <Card
                  key={model}
                  title={model}
                  facts={[
                    fill(t.about, { size: formatSize(size) }),
                    fill(t.needsMemory, { size: formatSize(memory.required) }),
                    license
                  ]}
                  about={about[shownLanguage.value] ?? about.en}
                  actions={
                    <>
                      {isHere(model) ? <span class="chip is-good">{t.isHere}</span> : <Fit {...memory} />}
                      <Button onClick={() => onChoose(model)} text={t.look} />
                    </>
                  }
                />
              ))}
            </ul>
          </section>
        )
      })}
      {shown.length < all.length && <Button onClick={() => setWhole(true)} text={t.showTooLarge} />}
    </section>
  )
}
