import { useState } from 'preact/hooks'
import { Menu, MenuItem, SearchField } from '../parts/controls.tsx'
import { formatSize } from '../parts/formats.ts'
import { Icon } from '../parts/icons.tsx'
import { joinFacts } from '../parts/layout.tsx'
import { may } from '../state/me.ts'
import { linkTo } from '../state/route.ts'
import { capabilitiesOf, chatModels, engineOf } from '../state/server-state.ts'
import { texts } from '../texts/texts.ts'

export function ModelPicker({ model, onChoose }: { model: string; onChoose: (name: string) => void }) {
  const t = texts.value
  const title = model || t.chooseModel
  const label = [`${t.model}: ${title}`, ...marksOf(model).map(mark => t.capabilities[mark])].join(', ')
  return (
    <>
      <Menu label={label} title={title} class="model-picker">
        {() => <ModelList model={model} onChoose={onChoose} />}
      </Menu>
      <Marks model={model} />
    </>
  )
}

/** Capabilities that are marked with an icon. */
const MARKS = { vision: 'eye', audio: 'sound', thinking: 'bulb', tools: 'tool' } as const

const marksOf = (model: string) =>
  (Object.keys(MARKS) as (keyof typeof MARKS)[]).filter(mark => capabilitiesOf(model).includes(mark))

function Marks({ model }: { model: string }) {
  const t = texts.value
  return (
    <span class="marks">
      {marksOf(model).map(mark => (
        <span key={mark} role="img" aria-label={t.capabilities[mark]} title={t.capabilities[mark]}>
          <Icon name={MARKS[mark]} size={14} />
        </span>
      ))}
    </span>
  )
}

function ModelList({ model, onChoose }: { model: string; onChoose: (name: string) => void }) {
  const t = texts.value
  const [wanted, setWanted] = useState('')
  const all = chatModels.value
  const found = all.filter(({ name }) => name.toLowerCase().includes(wanted.toLowerCase()))
  return (
    <>
      {all.length > 5 && <SearchField label={t.findModel} value={wanted} onInput={setWanted} />}
      {all.length === 0 && <p class="menu-note">{t.noModels}</p>}
      <div class="menu-scroll">
        {found.map(({ name, size }) => {
          const facts = joinFacts([size > 0 && formatSize(size), engineOf(name) && t.inMemory])
          const note = [facts && <span key="facts">{facts}</span>, <Marks key="marks" model={name} />]
          return (
            <MenuItem key={name} text={name} note={note} checked={name === model} onSelect={() => onChoose(name)} />
          )
        })}
      </div>
      {may('operator') && (
        <a class="menu-item" href={linkTo('models', 'get')}>
          <Icon name="download" size={16} />
          <span>{t.getModel}</span>
        </a>
      )}
    </>
  )
}
