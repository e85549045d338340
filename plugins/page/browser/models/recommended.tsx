import { useState } from 'preact/hooks'
import { formatSize } from '../parts/formats.ts'
import { Button, Choices } from '../parts/forms.tsx'
import { Card } from '../parts/layout.tsx'
import { models } from '../state/server-state.ts'
import { shownLanguage, texts } from '../texts/texts.ts'
import { Fit, usableMemory } from './memory-fit.tsx'
import RECOMMENDED from './recommended.json'

type Recommendation = Omit<(typeof RECOMMENDED)[number], 'about'> & { about: Partial<Record<string, string>> }

/** Bytes of memory for a model with a context of usual length, as the server estimates before a download. */
const requiredFor = ({ size }: Recommendation) => size * 1.1e9 + 2 ** 29

/** Models for each purpose, the largest that fit this machine first. They come from their publishers. */
export function Recommended({ onChoose }: { onChoose: (model: string) => void }) {
  const t = texts.value
  const [purpose, setPurpose] = useState<keyof typeof t.purposes>('chat')
  const [isWhole, setWhole] = useState(false)
  const available = usableMemory()
  const fits = (model: Recommendation) => available === undefined || requiredFor(model) <= available
  const all = (RECOMMENDED as Recommendation[])
    .filter(model => model.purpose === purpose)
    .sort((a, b) => Number(fits(b)) - Number(fits(a)) || (fits(a) ? b.size - a.size : a.size - b.size))
  const shown = isWhole ? all : all.filter(fits)
  const isHere = ({ model }: Recommendation) =>
    models.value.some(({ name }) => name.toLowerCase().startsWith(model.toLowerCase()))
  return (
    <section aria-label={t.recommended}>
      <h2>{t.recommended}</h2>
      <Choices label={t.purpose} names={t.purposes} chosen={purpose} onChoose={setPurpose} />
      {shown.length === 0 && <p class="quiet">{t.noneFits}</p>}
      <ul class="plain-list">
        {shown.map(found => (
          <Card
            key={found.model}
            title={found.model}
            facts={[`${t.about} ${formatSize(found.size * 1e9)}`, found.license]}
            actions={
              <>
                {isHere(found) ? (
                  <span class="chip is-good">{t.isHere}</span>
                ) : (
                  available !== undefined && <Fit required={requiredFor(found)} available={available} />
                )}
                <Button onClick={() => onChoose(found.model)} text={t.look} />
              </>
            }
          >
            <p>{found.about[shownLanguage.value] ?? found.about.en}</p>
          </Card>
        ))}
      </ul>
      {shown.length < all.length && <Button onClick={() => setWhole(true)} text={t.showTooLarge} />}
    </section>
  )
}
